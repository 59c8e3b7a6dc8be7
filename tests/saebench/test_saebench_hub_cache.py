"""SAEs and SAEBench's data sets from a Hugging Face cache, by the hosts' own loaders."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hub_cache import Row, add_data_set, add_sae
from sae_bench.sae_bench_utils.dataset_info import chosen_classes_per_dataset
from tiny_lm import FILLERS, MARKERS, make_sae

from sae_lens_cosine.saebench.datasets import SAEBENCH_TASKS

SESSION = Path(__file__).with_name("hub_cache_session.py")
GITHUB_CODE = "codeparrot/github-code"
ENOUGH = 12  # texts of the smallest cell: europarl takes 20 + 10 of three cells
SAE = make_sae("cosine_jumprelu", hook="blocks.0.hook_resid_post")
rng = random.Random(0)


def text(kind: int) -> str:
    """Seven words, and the one of the class, of which there are five."""
    words = [(*MARKERS, "a", "the")[kind % 5], *rng.choices(FILLERS[2:], k=7)]
    rng.shuffle(words)
    return " ".join(words)


def splits(row: Callable[..., Row], cells: Iterable[Any]) -> dict[str, list[Row]]:
    rows = [cell for cell in cells for _ in range(ENOUGH)]
    return {split: [row(*cell) for cell in rows] for split in ("train", "test")}


def fill(home: Path) -> None:
    """What is there after SAEBench's data sets and two SAEs were loaded once."""
    two_columns = [(kind, second) for kind in range(27) for second in (0, 1)]
    add_data_set(
        home,
        "fancyzhx/ag_news",
        splits(lambda c: {"text": text(c), "label": c}, [(c,) for c in range(4)] * 2),
    )
    add_data_set(
        home,
        "LabHC/bias_in_bios",
        splits(
            lambda job, gender: {
                "hard_text": text(job),
                "profession": job,
                "gender": gender,
            },
            two_columns,
        ),
    )
    add_data_set(
        home,
        "canrager/amazon_reviews_mcauley_1and5",
        splits(
            lambda kind, good: {
                "text": text(kind),
                "category": kind,
                "rating": 1.0 + 4 * good,
            },
            two_columns[:14],
        ),
    )
    for kind, pair in enumerate(("en-fr", "fr-it", "de-en", "es-fr", "nl-pt")):
        languages = pair.split("-")
        rows = splits(
            lambda kind, languages: {
                "translation": {language: text(kind) for language in languages}
            },
            [(kind, languages)] * 3,
        )
        add_data_set(home, "Helsinki-NLP/europarl", {"train": rows["train"]}, pair)
    add_data_set(
        home,
        GITHUB_CODE,
        splits(
            lambda language: {"code": "x" * 1000, "language": language},
            [(language,) for language in ("C", "Python", "HTML", "Java", "PHP") * 3],
        ),
    )
    add_sae(home, "lab/saes", "layer_0/k_4", SAE)
    add_sae(home, "jbloom/GPT2-Small-SAEs-Reformatted", "blocks.0.hook_resid_pre", SAE)


def test_everything_comes_from_the_cache(llama: Path, tmp_path: Path) -> None:
    home = tmp_path / "hf"
    fill(home)
    # The libraries read these when they are imported.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, SESSION, llama, tmp_path],
        env=kept | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    loaded = ["CosineJumpReLUSAE", pytest.approx(SAE.W_enc.norm().item())]
    assert found["saes"] == {
        "lab/saes/layer_0/k_4": loaded,
        "gpt2-small-res-jb/blocks.0.hook_resid_pre": loaded,
    }

    sizes = found["sizes"]
    assert list(sizes) == list(SAEBENCH_TASKS)
    # Of eight the one whose script takes the languages as part of its configuration.
    assert f"cannot load {GITHUB_CODE!r} from the" in sizes.pop(GITHUB_CODE)
    for task, (train, test) in sizes.items():  # 40 and 20 rows, half of them positive
        assert list(train) == chosen_classes_per_dataset[task]
        assert train == dict.fromkeys(train, 20)
        assert test == dict.fromkeys(train, 10)

    got = {k: v for k, v in found["ours"].items() if v is not None}
    assert got == found["theirs"]
    assert got["sae_top_5_test_accuracy"] > 0.6

    assert (
        "cannot load 'fancyzhx/ag_news' from the Hugging Face hub or its cache"
        in (found["files only"])
    )
