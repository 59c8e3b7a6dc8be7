"""Verdicts from hand-made parts."""

from typing import Any

import pytest
from real_model_claims import (
    FAILS,
    HOLDS,
    OPEN,
    UNMEASURED,
    Interval,
    Layer,
    closes_little,
    difference,
    exponent_below_half,
    matched,
    norm_detectors_fill,
    verdicts,
)


def run(ev: float = 0.0, exponent: float | None = None) -> dict[str, Any]:
    return {
        "reconstruction": {"sinks_excluded": {"explained_variance": ev, "l0": 32.0}},
        "exponent": None if exponent is None else {"mean": exponent},
    }


def layer(arms: dict[str, list[dict[str, Any]]], travel: float = 0.4) -> Layer:
    by_seed = {arm: dict(enumerate(runs)) for arm, runs in arms.items()}
    return Layer(by_seed, {}, {}, travel)


def summary(first: str, second: str, mean: float, half: float) -> dict[str, Any]:
    """Of one seed, with one pair, the same for both columns."""
    interval = {"mean": mean, "low": mean - half, "high": mean + half}
    pair = {
        "first": first,
        "second": second,
        "mean": interval,
        "by_dataset": {"amazon_sentiment": interval},
    }
    column = {"differences": {"1": [pair]}}
    return {"columns": {"none": column, "norm": column}}


def test_a_difference_holds_only_where_every_interval_is_on_its_side():
    up, wide, down = (
        Interval(0.05, 0.02, 0.08),
        Interval(0.05, -0.01, 0.11),
        Interval(-0.05, -0.08, -0.02),
    )
    assert difference({0: up, 1: up}).verdict == HOLDS
    assert difference({0: down, 1: down}).verdict == FAILS
    assert difference({0: up, 1: wide}).verdict == OPEN
    assert difference({0: up, 1: down}).verdict == OPEN
    assert difference({}).verdict == UNMEASURED
    # mean of the means, lowest and highest bound
    assert difference({0: up, 1: wide}).detail == "+0.050 (-0.010 to +0.110)"


def test_pairs_are_turned_round():
    measured = Layer(
        {}, {0: summary("batchtopk", "cosine_filtered", -0.04, 0.01)}, {}, 0.4
    )
    there = measured.probing("cosine_filtered", "batchtopk", "none")
    assert there[0] == pytest.approx((0.04, 0.03, 0.05))
    back = measured.probing("batchtopk", "cosine_filtered", "norm", "amazon_sentiment")
    assert back[0] == pytest.approx((-0.04, -0.05, -0.03))
    # the cosine arm gains on everything, on sentiment as well
    found = {claim: kinds["global"] for claim, kinds in verdicts(measured).items()}
    probing, sentiment = (
        next(f for claim, f in found.items() if claim.startswith(start))
        for start in ("probing improves", "sentiment goes the other way (as")
    )
    assert (probing.verdict, sentiment.verdict) == (HOLDS, FAILS)


def test_matched_within_the_tolerance_either_way():
    # 0.01 and 0.015 apart, then 0.06 and 0.05, then on both sides of 0.02
    for evs, expected in (
        ([(0.70, 0.71), (0.715, 0.70)], HOLDS),
        ([(0.76, 0.70), (0.65, 0.70)], FAILS),
        ([(0.71, 0.70), (0.75, 0.70)], OPEN),
    ):
        measured = layer(
            {
                "cosine_filtered": [run(cosine) for cosine, _ in evs],
                "batchtopk_filtered": [run(base) for _, base in evs],
            }
        )
        assert matched(measured, "cosine").verdict == expected


def test_an_exponent_that_cannot_get_there_proves_nothing():
    alone = layer({"cosine_filtered": [run(exponent=0.1)]})
    assert exponent_below_half(alone, "cosine").verdict == OPEN
    for from_half, expected in ((0.3, HOLDS), (0.6, OPEN)):
        both = layer(
            {
                "cosine_filtered": [run(exponent=0.1)],
                "cosine_from_half": [run(exponent=from_half)],
            }
        )
        assert exponent_below_half(both, "cosine").verdict == expected
    # twice as long, it could: 0.8 > 0.5
    long = layer({"cosine_filtered": [run(exponent=0.6)]}, travel=0.8)
    assert exponent_below_half(long, "cosine").verdict == FAILS


def test_the_share_of_a_gap_that_the_best_control_closes():
    def closes(*evs: tuple[float, float, float, float]) -> str:
        """Explained variance of baseline, two controls and cosine, by seed."""
        names = ("batchtopk_filtered", "one", "two", "cosine_filtered")
        arms = {
            name: [run(ev) for ev in evs_]
            for name, evs_ in zip(names, zip(*evs, strict=True), strict=True)
        }
        gap = layer(arms).reconstruction
        return closes_little("cosine", ("one", "two"), gap).verdict

    # (0.62 - 0.60) / (0.80 - 0.60) = 0.1
    assert closes((0.60, 0.62, 0.58, 0.80)) == HOLDS
    # (0.74 - 0.60) / 0.20 = 0.7, by the second control
    assert closes((0.60, 0.62, 0.74, 0.80)) == FAILS
    # 0.1 in one seed, 0.7 in the other; 0.4 in both
    assert closes((0.60, 0.62, 0.58, 0.80), (0.60, 0.62, 0.74, 0.80)) == OPEN
    assert closes((0.60, 0.68, 0.58, 0.80)) == OPEN
    # nothing to close
    assert closes((0.80, 0.70, 0.70, 0.60)) == OPEN


def test_without_parts_nothing_is_measured():
    found = verdicts(layer({}))
    assert {f.verdict for kinds in found.values() for f in kinds.values()} == {
        UNMEASURED
    }


def test_norm_detectors_fill_the_baseline_where_they_are_most_of_what_is_unmatched():
    def fills(*shares: float) -> str:
        parts = {
            seed: {"unmatched": {"norm_detector_share": share, "firings_in_q4": 0.9}}
            for seed, share in enumerate(shares)
        }
        measured = Layer({}, {}, {"batchtopk_filtered": parts}, 0.4)
        return norm_detectors_fill(measured, "cosine").verdict

    assert fills(0.8, 0.6) == HOLDS
    assert fills(0.3, 0.2) == FAILS
    assert fills(0.3, 0.6) == OPEN
    assert fills() == UNMEASURED
