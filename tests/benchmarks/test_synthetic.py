"""Data with a spread of norms, and who parts from whom on it."""

import json
from typing import Any

import pytest
import torch
from sae_lens import BatchTopKTrainingSAEConfig
from sae_lens.synthetic import FeatureDictionary
from synthetic import (
    D_IN,
    N_FEATURES,
    SINK_ARMS,
    SINK_MULTIPLE,
    SINK_SHARE,
    SYNTHETIC_ARMS,
    TYPICAL_NORM,
    Job,
    batches,
    measure,
    synthetic_config,
    tokens_of,
)
from synthetic_report import parting


@pytest.fixture(scope="module")
def dictionary() -> FeatureDictionary:
    return FeatureDictionary(N_FEATURES, D_IN, seed=0)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_norms_spread_as_asked_and_features_stay(dictionary, spread: float):
    torch.manual_seed(0)
    acts = tokens_of(dictionary, spread).sample(4096)
    norms = dictionary(acts).norm(dim=1)
    norms = norms[acts.any(1)]  # about e^-6 of the tokens have no feature
    assert norms.median().item() == pytest.approx(TYPICAL_NORM, rel=0.1 * spread + 1e-5)
    assert norms.log().std().item() == pytest.approx(spread, abs=0.05 * spread + 1e-5)
    assert (acts > 0).sum(1).float().mean().item() == pytest.approx(6, abs=0.2)


def test_every_arm_sees_the_same_tokens_whatever_it_draws(dictionary):
    first, second = (batches(dictionary, 0.5, True, seed=3) for _ in range(2))
    for _ in range(2):
        one = next(first)
        torch.rand(7)  # as a trainer might
        torch.testing.assert_close(one, next(second), rtol=0, atol=0)


def test_sinks_are_rare_long_and_of_one_direction(dictionary):
    plain = batches(dictionary, 0.0, False, seed=0)
    data = batches(dictionary, 0.0, True, seed=0)
    x = torch.cat([next(data) for _ in range(10)])
    moved = x - torch.cat([next(plain) for _ in range(10)])
    sinks = moved[moved.any(1)]
    assert len(sinks) / len(x) == pytest.approx(SINK_SHARE, abs=0.004)
    length = SINK_MULTIPLE * TYPICAL_NORM
    torch.testing.assert_close(sinks.norm(dim=1), torch.full((len(sinks),), length))
    torch.testing.assert_close(sinks, sinks[:1].expand_as(sinks))


def run(arm: str, spread: float, seed: int, f1: float) -> dict[str, Any]:
    return {
        "arm": arm,
        "spread": spread,
        "seed": seed,
        "sinks": False,
        "classification": {"f1_score": f1},
    }


def compare(differences: dict[float, list[float]]) -> dict[str, Any]:
    """Arms a and b with F1 0.5 + difference and 0.5."""
    runs = [
        run(arm, spread, seed, f1)
        for spread, by_seed in differences.items()
        for seed, d in enumerate(by_seed)
        for arm, f1 in (("a", 0.5 + d), ("b", 0.5))
    ]
    return parting(runs, False, "a", "b")


def test_where_arms_part():
    # within 0.01; beyond it in the mean but not in sign; beyond it
    found = compare({0: [0.004, 0.008], 0.5: [0.05, -0.01], 1: [0.05, 0.03]})
    assert [d["parts"] for d in found["by_spread"].values()] == [False, False, True]
    assert (found["parts_from"], found["ahead"]) == (1, "a")
    assert found["by_spread"][1]["mean"] == pytest.approx(0.04)
    # from the lowest spread on, until the sign turns
    found = compare({0: [0.05, 0.05], 0.5: [-0.05, -0.05], 1: [-0.03, -0.05]})
    assert (found["parts_from"], found["ahead"]) == (0.5, "b")
    # a tie at the highest spread: they part from nowhere on
    found = compare({0: [0.05, 0.05], 1: [0.0, 0.001]})
    assert (found["parts_from"], found["ahead"]) == (None, None)


@pytest.mark.parametrize("arm", SYNTHETIC_ARMS + SINK_ARMS)
def test_arms_start_from_unit_rows_but_for_the_hosts_own(arm: str):
    own = BatchTopKTrainingSAEConfig.decoder_init_norm
    expected = own if arm == "batchtopk" else 1.0
    assert synthetic_config(arm).decoder_init_norm == expected


def test_a_job_is_measured_once_and_judged_on_ordinary_tokens(tmp_path):
    job = Job("cosine_sinks", 0.5, True, seed=0, steps=20)
    measure(job, tmp_path)
    (part,) = tmp_path.iterdir()
    found = json.loads(part.read_text())
    # K = 6 features a token; sinks are not among them
    assert found["true_l0"] == pytest.approx(6, abs=0.1)
    assert 0 < found["classification"]["f1_score"] < 1
    written = part.stat().st_mtime_ns
    measure(job, tmp_path)
    assert part.stat().st_mtime_ns == written
