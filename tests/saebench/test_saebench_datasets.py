"""Data sets by name, by suite, from tables and from SAEBench's own loaders."""

import gettext
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets as hugging_face
import pandas as pd
import pytest
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig

from sae_lens_cosine.demo.text import PROBING_TASKS, text_part
from sae_lens_cosine.labelled_texts import LabelledTexts
from sae_lens_cosine.saebench import TextTable, load_datasets
from sae_lens_cosine.saebench.datasets import OFFLINE_TASKS, SAEBENCH_TASKS
from sae_lens_cosine.saebench.languages import LANGUAGES, language_texts
from sae_lens_cosine.saebench.splits import Size


def frame(n: int = 20) -> pd.DataFrame:
    """``n`` texts of each of two labels."""
    rows = [(f"text {i} of {label}", label) for label in (0, 1) for i in range(n)]
    return pd.DataFrame(rows, columns=["text", "label"])


def sizes(texts: LabelledTexts) -> dict[str, dict[str, int]]:
    return {
        split: {label: len(rows) for label, rows in by_label.items()}
        for split, by_label in (("train", texts.train), ("test", texts.test))
    }


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "Dataset"])
def test_tables(tmp_path: Path, kind: str) -> None:
    table = frame()
    path = tmp_path / f"mine.{kind}"
    source: Any = path
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "parquet":
        table.to_parquet(path)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        source = hugging_face.Dataset.from_pandas(table)
    (texts,) = load_datasets(source, train_rows=20, test_rows=10)
    assert texts.name == ("dataset" if kind == "Dataset" else "mine")
    assert sizes(texts) == {"train": {"0": 10, "1": 10}, "test": {"0": 5, "1": 5}}
    every = [t for s in (texts.train, texts.test) for rows in s.values() for t in rows]
    assert len(set(every)) == 30
    assert all(f"of {label}" in t for label, rows in texts.train.items() for t in rows)
    (again,) = load_datasets(source, train_rows=20, test_rows=10)
    assert again == texts
    (other,) = load_datasets(source, train_rows=20, test_rows=10, seed=1)
    assert other != texts


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_cells_are_taken_as_they_stand(tmp_path: Path, kind: str) -> None:
    labels = ("NA", "None", "null", "000", "001")
    rows = [(f"{i:04}{n}", name) for n, name in enumerate(labels) for i in range(9)]
    table = pd.DataFrame([*rows, ("", "NA"), ("0099", "")], columns=["text", "label"])
    path = tmp_path / f"mine.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)
    elif kind == "jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    with pytest.warns(UserWarning, match="'mine': left out of 47 rows.*label: 2"):
        (texts,) = load_datasets(path)
    assert list(texts.train) == sorted(labels)
    for label, of_class in texts.train.items():
        every = {*of_class, *texts.test[label]}
        assert every == {text for text, name in rows if name == label}


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        (
            hugging_face.Dataset.from_pandas(frame()).cast_column(
                "label", hugging_face.ClassLabel(names=["no", "yes"])
            ),
            {"no", "yes"},
        ),
        (
            TextTable(pd.concat([frame(), pd.DataFrame([{"text": "no label"}])])),
            {"0", "1"},
        ),
    ],
)
def test_classes_keep_their_names(source: Any, labels: set[str]) -> None:
    (texts,) = load_datasets(source)
    assert set(texts.train) == labels


def test_rows_that_cannot_be_used_are_counted() -> None:
    table = pd.concat(
        [
            frame(9),
            pd.DataFrame(
                [
                    ("text  0 of 0", 0),  # again, with another space
                    ("text 1 of 0", 1),  # under both labels
                    (None, 0),
                    ("  ", 1),
                    ("text", None),
                ],
                columns=["text", "label"],
            ),
        ]
    )
    table["label"] = table["label"].map({0: "no", 1: "yes"})
    with pytest.warns(UserWarning, match="'table': left out of 23 rows: .*s: 1, tex"):
        (texts,) = load_datasets(TextTable(table), train_rows=20, test_rows=10)
    assert texts.dropped == {
        "rows without text or label": 3,
        "duplicates": 1,
        "texts in two classes": 2,  # one text, two rows
    }
    # 9 of "yes", 8 of "no" are left; 10 + 5 were asked for: 8 * 5 // 15 = 2 for test.
    assert sizes(texts) == {
        "train": {"no": 6, "yes": 6},
        "test": {"no": 2, "yes": 2},
    }


def test_bad_tables(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column 'topic', only text, label"):
        load_datasets(TextTable(frame(), label="topic"))
    with pytest.raises(ValueError, match=r"There is no file .*gone\.csv"):
        load_datasets(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match=r"'table' has the classes \{'0': 20\}"):
        load_datasets(TextTable(frame()[:20]))
    with pytest.raises(ValueError, match="There is no data set 'unheard-of'"):
        load_datasets("unheard-of")
    with pytest.raises(TypeError, match="A DatasetDict is no data set"):
        load_datasets(hugging_face.DatasetDict())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_rows=1"):
        load_datasets(TextTable(frame()), train_rows=1)


def test_names_of_sae_probes() -> None:
    (texts,) = load_datasets("162_agnews_1", train_rows=40, test_rows=20)
    assert sizes(texts) == {"train": {"0": 20, "1": 20}, "test": {"0": 10, "1": 10}}
    every = [t for s in (texts.train, texts.test) for rows in s.values() for t in rows]
    assert len(set(every)) == 60
    # Nothing that the demo's SAEs were trained on.
    assert {text_part(text) for text in every} == {"probing"}


def test_offline_suite_has_a_counterpart_for_each_of_saebenchs_tasks() -> None:
    counterparts = {PROBING_TASKS[name].counterpart for name in OFFLINE_TASKS[:-1]}
    assert counterparts | {"Helsinki-NLP/europarl"} == set(SAEBENCH_TASKS)
    assert len(OFFLINE_TASKS) == 8


@pytest.fixture
def catalogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `django` with 60 messages in four languages beside English."""
    found = importlib.util.find_spec

    class Translations:
        def __init__(self, file: Any) -> None:
            language = file.read().decode()
            self._catalog = {
                "": "header",
                "Untranslated message here": "Untranslated message here",
                **{
                    f"Message number %(n)s is {i:03}": f"{language}: bericht nummer {i:03}"
                    for i in range(60)
                },
                ("One of many messages", 0): f"{language}: ein und mehrere",
                "Yes": "Ja",
            }

    def spec(name: str) -> Any:
        if name == "django":
            return SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        return None if name == "sphinx" else found(name)

    for language in LANGUAGES[1:]:
        folder = tmp_path / "conf" / "locale" / language / "LC_MESSAGES"
        folder.mkdir(parents=True)
        (folder / "django.mo").write_text(language)
    monkeypatch.setattr(gettext, "GNUTranslations", Translations)
    monkeypatch.setattr(importlib.util, "find_spec", spec)


@pytest.mark.usefixtures("catalogues")
def test_languages_from_catalogues() -> None:
    texts = language_texts(Size(30, 10))
    assert texts is not None
    assert list(texts.train) == list(LANGUAGES)
    assert {len(rows) for rows in texts.train.values()} == {30}
    assert {len(rows) for rows in texts.test.values()} == {10}
    assert all("%(" not in text for text in texts.train["en"])
    # A message and its translations are on one side.
    numbers = {
        split: {t[-3:] for rows in by_label.values() for t in rows if t[-3:].isdigit()}
        for split, by_label in (("train", texts.train), ("test", texts.test))
    }
    assert numbers["train"]
    assert not numbers["train"] & numbers["test"]


def test_suite_says_that_languages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("django", "sphinx") else found(name),
    )
    assert language_texts(Size(2, 2)) is None
    with (
        pytest.warns(UserWarning, match="runs without 'languages'.*pip install django"),
        pytest.raises(ValueError, match="There is no data set to probe on"),
    ):
        load_datasets("languages")


def test_hub_failure_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugging_face.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(ValueError, match=r"hub or its cache .*\. The suite 'offline'"):
        load_datasets("saebench")


def test_defaults_are_the_published_settings() -> None:
    import inspect

    from sae_lens_cosine.saebench import run_sparse_probing

    ours = inspect.signature(run_sparse_probing).parameters
    theirs = SparseProbingEvalConfig()
    assert list(SAEBENCH_TASKS) == theirs.dataset_names
    assert ours["train_rows"].default == theirs.probe_train_set_size
    assert ours["test_rows"].default == theirs.probe_test_set_size
    assert ours["context_size"].default == theirs.context_length
    assert list(ours["ks"].default) == theirs.k_values
    assert ours["seed"].default == theirs.random_seed
    assert ours["sae_batch_size"].default == theirs.sae_batch_size
