"""Repeats, recorded answers, and paired bootstrap intervals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_lm import CONTEXT, make_sae, make_texts
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench import run_sparse_probing
from sae_lens_cosine.saebench.prober import Answers
from sae_lens_cosine.saebench.statistics import accuracies, paired_differences


def answers(*rows: list[int], dataset: str = "d") -> Answers:
    """One repeat; a row for each class."""
    return Answers({dataset: {1: np.array([rows], np.int8)}})


def test_accuracy_is_the_mean_over_classes_of_tested_prompts() -> None:
    # 2 of 3 and 1 of 2: (2/3 + 1/2) / 2
    got = accuracies(np.array([[[1, 1, 0, -1], [-1, -1, 1, 0]]], np.int8))
    assert got.mean == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert got.std is None
    # Repeats of accuracy 1 and 0: mean 1/2, standard deviation 1/sqrt(2).
    got = accuracies(np.array([[[1, 1]], [[0, 0]]], np.int8))
    assert (got.mean, got.std) == (0.5, pytest.approx(0.5**0.5))


def test_interval_matches_the_known_spread() -> None:
    # A answers 75 and B 50 of 100 prompts rightly, independently: the difference has
    # the standard error sqrt((0.75 * 0.25 + 0.5 * 0.5) / 100) = 0.066.
    n = 400
    rng = np.random.default_rng(1)
    right = {"a": np.zeros(n, int), "b": np.zeros(n, int)}
    right["a"][rng.permutation(n)[: 3 * n // 4]] = 1
    right["b"][rng.permutation(n)[: n // 2]] = 1
    found = {name: answers(list(r)) for name, r in right.items()}
    (pair,) = paired_differences(found, 1)
    assert pair.mean.mean == pytest.approx(0.25)
    per_prompt = right["a"] - right["b"]
    error = per_prompt.std() / n**0.5
    assert pair.mean.low == pytest.approx(0.25 - 1.96 * error, abs=0.15 * error)
    assert pair.mean.high == pytest.approx(0.25 + 1.96 * error, abs=0.15 * error)
    assert pair.mean.is_one


def test_pairing_makes_equal_saes_certainly_equal() -> None:
    rng = np.random.default_rng(0)
    row = list(rng.integers(0, 2, 50))
    (pair,) = paired_differences({"a": answers(row), "b": answers(row)}, 1)
    assert (pair.mean.low, pair.mean.high) == (0, 0)
    assert not pair.mean.is_one


def test_chance_is_not_called_a_difference() -> None:
    """Two SAEs of equal skill: about 5% of intervals may exclude zero."""
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(100):
        pair = {name: answers(list(rng.random(60) < 0.7)) for name in "ab"}
        called += paired_differences(pair, 1)[0].mean.is_one
    assert 1 <= called <= 12


def test_mean_over_data_sets() -> None:
    a = Answers({d: {1: np.ones((1, 1, 20), np.int8)} for d in ("x", "y")})
    b = Answers(
        {
            "x": {1: np.ones((1, 1, 20), np.int8)},
            "y": {1: np.zeros((1, 1, 20), np.int8)},
        }
    )
    (pair,) = paired_differences({"a": a, "b": b}, 1)
    assert pair.by_dataset["x"].mean == 0
    assert pair.by_dataset["y"].mean == 1
    assert pair.mean.mean == 0.5


@pytest.fixture(scope="module")
def repeated(
    model: HookedTransformer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("repeated")
    saes = {"one": make_sae(seed=1), "two": make_sae("topk", seed=2, k=4)}
    return probe(model, saes, folder), folder


def probe(model: HookedTransformer, saes: Any, folder: Path, **kwargs: Any) -> Any:
    settings = {"probe_seeds": 4, "ks": (1, 5)}
    return run_sparse_probing(
        saes,
        model=model,
        datasets=[make_texts("first"), make_texts("second", seed=1)],
        output=folder,
        context_size=CONTEXT,
        show_progress=False,
        **settings | kwargs,
    )


def test_first_repeat_is_saebenchs_run(
    repeated: Any, model: HookedTransformer, tmp_path: Path
) -> None:
    report, folder = repeated
    single = probe(model, {"one": make_sae(seed=1)}, tmp_path, probe_seeds=1)
    assert single["one"].eval_result_metrics == report["one"].eval_result_metrics

    (path,) = (folder / "answers").glob("one_*.npz")
    stored = Answers.load(path).by_dataset
    for detail in report["one"].eval_result_details:
        for k in (1, 5):
            found = stored[detail.dataset_name.removesuffix("_results")][k]
            # 4 repeats, 3 classes, 3 x 12 test prompts; each probe is tested on the 12
            # of its class and 6 of each other.
            assert found.shape == (4, 3, 36)
            assert ((found >= 0).sum(-1) == 24).all()
            assert (found[:, 0, :12] >= 0).all()
            reported = getattr(detail, f"sae_top_{k}_test_accuracy")
            assert accuracies(found[:1]).mean == pytest.approx(reported, abs=1e-12)


def test_repeats_are_reported_with_spread_and_pairs(
    repeated: Any, model: HookedTransformer
) -> None:
    report, folder = repeated
    column = report.summary.columns["none"]
    scores = column.scores["one"][1]
    assert scores.mean.std is not None
    assert scores.mean.std > 0
    means = [a.mean for a in scores.by_dataset.values()]
    assert scores.mean.mean == pytest.approx(sum(means) / 2)
    (pair,) = column.differences[1]
    assert (pair.first, pair.second) == ("one", "two")
    expected = scores.mean.mean - column.scores["two"][1].mean.mean
    assert pair.mean.mean == pytest.approx(expected)
    assert len(report.tables()) == 2

    # Read back: the same statistics.
    saes = {"one": make_sae(seed=1), "two": make_sae("topk", seed=2, k=4)}
    assert probe(model, saes, folder).summary == report.summary
    summary = (folder / report.summary_filename).read_text()
    assert summary == report.summary.model_dump_json(indent=1)

    # Another choice of SAEs beside it.
    other = probe(model, {"one": saes["one"]}, folder)
    assert sorted(path.name for path in folder.glob("*.json")) == sorted(
        [report.summary_filename, other.summary_filename]
    )
    assert (folder / report.summary_filename).read_text() == summary


def test_no_repeat_is_refused(model: HookedTransformer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="probe_seeds=0"):
        probe(model, {"x": make_sae()}, tmp_path, probe_seeds=0)
