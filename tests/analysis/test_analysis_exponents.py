"""Exponents: their distribution, their density, and their drift."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import linear_sae, train, training_sae
from sae_lens import SAE, TrainingSAE

from sae_lens_cosine.analysis import (
    LearnedExponents,
    exponent_drift,
    exponents_by_density,
    learned_exponents,
)


def per_feature(values: list[float]) -> LearnedExponents:
    sae = training_sae(exponent_mode="per_feature", d_sae=len(values), k=1, sink_rank=0)
    sae.exponent_base.data.fill_(0.1)
    sae.exponent_delta.data = torch.tensor(values) - 0.1
    return learned_exponents(sae)


def test_distribution_by_hand():
    found = per_feature([0.0, 0.2, 0.4, 1.0])
    assert found.mode == "per_feature"
    assert found.mean == pytest.approx(0.4)
    assert found.std == pytest.approx((0.56 / 4) ** 0.5)  # .16 + .04 + 0 + .36
    assert (found.lowest, found.highest) == pytest.approx((0.0, 1.0))
    # sorted, at positions 0.15, 0.75, 1.5, 2.25, 2.85 of 0 .. 3
    assert found.quantiles == pytest.approx((0.03, 0.15, 0.3, 0.55, 0.91))
    assert found.below_half_share == 0.75


def test_global_exponent_and_none():
    sae = training_sae(initial_exponent=0.25)
    found = learned_exponents(sae)
    assert found.mode == "global"
    assert found.values.tolist() == [0.25]
    assert found.std == 0.0
    with pytest.raises(TypeError, match="StandardSAE has no exponents"):
        learned_exponents(linear_sae(2))


def test_sink_latents_have_no_learned_exponent():
    sae = training_sae(exponent_mode="per_feature")
    sae.exponent_delta.data[-2:] = 50.0
    sae.sink_directions.data[0, 0] = 1.0  # one direction, two latents
    found = learned_exponents(sae)
    assert np.isnan(found.values[-2:]).all()
    assert found.highest == 0.0


def test_density_by_hand():
    # the fourth latent never fires; in two groups of 2 and 1
    found = exponents_by_density(
        per_feature([0.3, 0.1, 0.2, 0.9]), np.array([0.5, 0.1, 0.2, 0.0]), groups=2
    )
    assert found.n_latents == 3
    assert found.spearman == pytest.approx(1.0)
    assert found.group_sizes.tolist() == [2, 1]
    assert found.densities == pytest.approx([0.15, 0.5])
    assert found.exponents == pytest.approx([0.15, 0.3])
    equal = exponents_by_density(per_feature([0.3, 0.3]), np.array([0.5, 0.1]))
    assert equal.spearman is None
    with pytest.raises(ValueError, match=r"1 exponents \(global\) and 24 densities"):
        exponents_by_density(learned_exponents(training_sae()), np.ones(24))


def test_drift_over_checkpoints(tmp_path: Path):
    sae = training_sae(exponent_mode="per_feature")
    expected = []
    for n in (512, 1024):
        train(sae, n_steps=3)
        sae.save_model(tmp_path / str(n))  # what SAELens's trainer calls
        expected.append(learned_exponents(sae).mean)
    sae.save_inference_model(tmp_path / "final_2048")
    found = exponent_drift(sorted(tmp_path.iterdir()))  # "1024" before "512"
    assert [c.n_tokens for c in found] == [512, 1024, 2048]
    assert [c.exponents.mean for c in found] == pytest.approx([*expected, expected[1]])
    assert expected[0] != expected[1] != 0
    assert isinstance(TrainingSAE.load_from_disk(found[0].folder), TrainingSAE)
    assert isinstance(SAE.load_from_disk(found[2].folder), SAE)


def test_drift_keeps_the_order_of_unnumbered_folders(tmp_path: Path):
    for name in ("late", "early"):
        training_sae().save_model(tmp_path / name)
    found = exponent_drift([tmp_path / "late", tmp_path / "early"])
    assert [Path(c.folder).name for c in found] == ["late", "early"]
    assert found[0].n_tokens is None


def test_folders_without_exponents_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"has no sae_weights\.safetensors"):
        exponent_drift([tmp_path])
    linear_sae(2).save_model(tmp_path)
    with pytest.raises(ValueError, match="not those of a cosine SAE"):
        exponent_drift([tmp_path])
