"""Real text from the package `sae-probes`: rows to train on, to evaluate and to probe.

Its wheel carries 155 labelled data sets (232M characters, 107M without repetitions).
A hash of the text's beginning puts every text into exactly one part, whichever data
sets it occurs in, so that no SAE has seen a text that it is evaluated or probed on.
Only the beginning counts because a probe reads no more of it (SAEBench: 128 tokens),
and thousands of rows differ late: one passage with several questions, one licence
above several programs.
"""

import hashlib
import importlib.util
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from datasets import Dataset

from sae_lens_cosine.labelled_texts import LabelledTexts

Part = Literal["train", "evaluation", "probing"]

_TRAIN_PERCENT, _EVALUATION_PERCENT = 25, 5  # the other 70 are for probing
_KEY_CHARS = 500
"""Texts that agree in so many characters count as one text."""
_MIN_CHARS, _MAX_CHARS = 200, 2000
"""Rows to train on: shorter ones (names, dates) are all context start; longer ones
(scientific papers, code) are cut, or they would make up half of the tokens."""
_CHARS_PER_TOKEN = 5
"""More than SmolLM2's tokenizer needs on these rows (4.1), so asking by tokens is safe."""


@dataclass(frozen=True)
class ProbingTask:
    """Where the classes of one labelled task come from."""

    counterpart: str | None
    """The SAEBench data set that the task stands in for, if any."""
    classes: dict[str, tuple[str, str]]
    """Class name: (`sae-probes` data set, value of its `target` column)."""


_JOURNALIST = {"journalist": ("59_wikidata_occupation_isjournalist", "1")}
_ATHLETE = {"athlete": ("60_wikidata_occupation_isathlete", "1")}
_ACTOR = {"actor": ("61_wikidata_occupation_isactor", "1")}
_POLITICIAN = {"politician": ("62_wikidata_occupation_ispolitician", "1")}
_SINGER = {"singer": ("63_wikidata_occupation_issinger", "1")}
_RESEARCHER = {"researcher": ("64_wikidata_occupation_isresearcher", "1")}

# Only the positives of the binary sets are used: the negatives of `agnews_*` are source
# code, which makes news against not-news trivial. Of SAEBench's eight tasks, language
# identification has no data here, and of its class sets the ones below are all there is.
PROBING_TASKS: dict[str, ProbingTask] = {
    "ag_news": ProbingTask(
        "fancyzhx/ag_news",
        {
            "world": ("161_agnews_0", "1"),
            "sports": ("162_agnews_1", "1"),
            "business": ("163_agnews_2", "1"),
        },
    ),
    "code_language": ProbingTask(
        "codeparrot/github-code",
        {
            "C": ("158_code_C", "1"),
            "Python": ("159_code_Python", "1"),
            "HTML": ("160_code_HTML", "1"),
        },
    ),
    "occupations": ProbingTask(
        None, _JOURNALIST | _ATHLETE | _ACTOR | _POLITICIAN | _SINGER | _RESEARCHER
    ),
    # Six occupations in three sets of four, each in two sets: with disjoint pairs the
    # two one-against-the-rest probes of a set would be one and the same.
    "occupations_1": ProbingTask(
        "LabHC/bias_in_bios_class_set1", _JOURNALIST | _ATHLETE | _ACTOR | _POLITICIAN
    ),
    "occupations_2": ProbingTask(
        "LabHC/bias_in_bios_class_set2", _ACTOR | _POLITICIAN | _SINGER | _RESEARCHER
    ),
    "occupations_3": ProbingTask(
        "LabHC/bias_in_bios_class_set3", _SINGER | _RESEARCHER | _JOURNALIST | _ATHLETE
    ),
    # Yelp reviews; `112_amzn_rev` is the same file byte for byte, and no set has
    # product categories, which is what SAEBench's task asks for.
    "review_stars": ProbingTask(
        "canrager/amazon_reviews_mcauley_1and5",
        {f"{star + 1} stars": ("111_yelp_data", str(star)) for star in range(5)},
    ),
    "amazon_sentiment": ProbingTask(
        "canrager/amazon_reviews_mcauley_1and5_sentiment",
        {"negative": ("157_amazon_5star", "0"), "positive": ("157_amazon_5star", "1")},
    ),
    "movie_sentiment": ProbingTask(
        None,
        {"negative": ("113_movie_sent", "0"), "positive": ("113_movie_sent", "1")},
    ),
}
"""Every labelled task by name; those with a `counterpart` mirror SAEBench's suite."""

DEMO_TASKS = ("ag_news", "code_language", "occupations", "review_stars")
"""The tasks that `sae-lens-cosine demo` probes."""


def text_part(text: str) -> Part:
    """The one part that a text belongs to: 25% train, 5% evaluation, 70% probing.

    Copies that differ in white space, or only after 500 characters, stay together.
    """
    percent = int.from_bytes(_key(text), "big") % 100
    if percent < _TRAIN_PERCENT:
        return "train"
    if percent < _TRAIN_PERCENT + _EVALUATION_PERCENT:
        return "evaluation"
    return "probing"


def training_rows(min_tokens: int, seed: int = 0) -> Dataset:
    """Rows of the train part, a mix of all data sets, for `override_dataset`.

    Args:
        min_tokens: tokens that the rows have at least (SmolLM2's tokenizer); about 2.6M
            can be had. Only as much as is needed is read.
        seed: of the choice and the order of the rows.

    Returns:
        A data set with the column `text`; rows of 200 to 2000 characters.

    Raises:
        ImportError: `sae-probes` is missing.
        ValueError: there is less text than asked for.
    """
    return _mixed_rows("train", min_tokens, seed)


def evaluation_rows(min_tokens: int, seed: int = 0) -> Dataset:
    """Held-out rows for reconstruction metrics, like `training_rows` (up to 0.5M tokens)."""
    return _mixed_rows("evaluation", min_tokens, seed)


def probing_task(
    name: str, train_per_class: int, test_per_class: int, seed: int = 0
) -> LabelledTexts:
    """A labelled task from texts of the probing part alone: balanced classes, every
    text in one list only.

    Args:
        name: a key of `PROBING_TASKS`.
        train_per_class: training texts of every class.
        test_per_class: test texts of every class.
        seed: of the choice and the order of the texts.

    Raises:
        ImportError: `sae-probes` is missing.
        ValueError: there is no such task or a class has too few texts; the message says
            what there is.
    """
    if name not in PROBING_TASKS:
        raise ValueError(f"no task {name!r}; there are {', '.join(PROBING_TASKS)}")
    if train_per_class < 1 or test_per_class < 1:
        raise ValueError("train_per_class and test_per_class must be at least 1")
    texts, _ = distinct_texts(PROBING_TASKS[name])
    counts = {label: len(rows) for label, rows in texts.items()}
    if min(counts.values()) < train_per_class + test_per_class:
        raise ValueError(
            f"task {name!r} has too few texts for {train_per_class} training and "
            f"{test_per_class} test texts per class: the probing part holds "
            + ", ".join(f"{count} of {label!r}" for label, count in counts.items())
        )
    train, test = {}, {}
    for label, rows in texts.items():
        random.Random(f"{seed}/{name}/{label}").shuffle(rows)
        train[label] = rows[:train_per_class]
        test[label] = rows[train_per_class : train_per_class + test_per_class]
    return LabelledTexts(name, train, test)


def distinct_texts(task: ProbingTask) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Texts of the probing part by class, and how many were left out for what reason.

    A text that occurs again counts once; one that occurs in two classes not at all.
    """
    found: dict[str, dict[bytes, str]] = {}
    n_texts = 0
    for label, (data_set, target) in task.classes.items():
        frame = read_data_set(data_set)
        texts = frame["prompt"][frame["target"] == target]
        texts = [text for text in texts if text_part(text) == "probing"]
        n_texts += len(texts)
        found[label] = {_key(text): text for text in texts}
    labels = Counter(key for rows in found.values() for key in rows)
    distinct = {
        label: [text for key, text in rows.items() if labels[key] == 1]
        for label, rows in found.items()
    }
    in_two = sum(count for count in labels.values() if count > 1)
    return distinct, {
        "duplicates": n_texts - labels.total(),
        "texts in two classes": in_two,
    }


def read_data_set(name: str) -> pd.DataFrame:
    """One file of `sae-probes`, with the columns `prompt` and `target` as text."""
    path = _data_dir() / f"{name}.csv.zst"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def data_set_names() -> list[str]:
    """The labelled data sets of `sae-probes`."""
    return sorted(
        path.name.removesuffix(".csv.zst") for path in _data_dir().glob("*.zst")
    )


def _mixed_rows(part: Part, min_tokens: int, seed: int) -> Dataset:
    """One row of every data set in turn until there are `min_tokens`, then shuffled."""
    order = random.Random(seed)
    streams = [_stream(path, part, seed) for path in sorted(_data_dir().glob("*.zst"))]
    order.shuffle(streams)
    rows: dict[bytes, str] = {}
    missing = min_tokens * _CHARS_PER_TOKEN
    while streams and missing > 0:
        stream = streams.pop(0)
        for text in stream:
            if _key(text) not in rows:
                rows[_key(text)] = text[:_MAX_CHARS]
                missing -= len(rows[_key(text)])
                streams.append(stream)
                break
    if missing > 0:
        held = min_tokens - missing // _CHARS_PER_TOKEN
        raise ValueError(
            f"{min_tokens} {part} tokens asked for, but the texts of sae-probes hold "
            f"about {held}"
        )
    mixed = list(rows.values())
    order.shuffle(mixed)
    return Dataset.from_dict({"text": mixed})


def _stream(path: Path, part: Part, seed: int) -> Iterator[str]:
    """Rows of one data set that belong to `part`, read in pieces as they are needed."""
    order = random.Random(f"{seed}/{path.name}")
    with pd.read_csv(path, dtype=str, keep_default_na=False, chunksize=100) as pieces:
        for number, piece in enumerate(pieces):
            if number == 0 and piece["prompt"].str.len().max() < _MIN_CHARS:
                return  # a set of names or dates: nothing long will follow
            texts = [
                text
                for text in piece["prompt"]
                if len(text) >= _MIN_CHARS and text_part(text) == part
            ]
            order.shuffle(texts)
            yield from texts


def _key(text: str) -> bytes:
    """64-bit hash of the beginning of the text, white space not counted."""
    beginning = " ".join(text.split())[:_KEY_CHARS].rstrip()
    encoded = beginning.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=8).digest()


def _data_dir() -> Path:
    """The folder of data sets, found without importing `sae-probes`."""
    spec = importlib.util.find_spec("sae_probes")
    for location in (spec and spec.submodule_search_locations) or []:
        folder = Path(location) / "data" / "cleaned_data"
        if folder.is_dir():
            return folder
    raise ImportError(
        'The demo text comes from sae-probes: pip install "sae-lens-cosine[demo]".'
    )
