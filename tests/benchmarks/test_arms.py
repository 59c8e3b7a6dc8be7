"""What the arms of the real-model benchmark have in common, and what tells them apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from arms import ARMS, OUTLIERS, arm_config
from common import batches, train

from sae_lens_cosine import ReweightedBatchTopKTrainingSAEConfig


def small(arm: str):
    return replace(arm_config(arm, d_in=8), d_sae=32, k=4)


@pytest.mark.parametrize("arm", ARMS)
def test_outliers_are_treated_as_the_table_says(arm: str):
    cfg = arm_config(arm, d_in=8)
    if OUTLIERS[arm] == "trained on":
        assert not hasattr(cfg, "outlier_norm_multiple")
        return
    assert getattr(cfg, "outlier_norm_multiple", None) == 10
    assert bool(getattr(cfg, "sink_rank", 0)) == (OUTLIERS[arm] == "sink latents")


def test_the_reweighted_arms_differ_from_the_filtered_one_in_the_loss_alone():
    rows = np.random.default_rng(0).normal(size=(4096, 8)).astype(np.float32)
    rows[::100] *= 1000  # filtered
    reweighted = small("reweighted_inverse_norm")
    assert isinstance(reweighted, ReweightedBatchTopKTrainingSAEConfig)
    without_weights = replace(reweighted, loss_weighting="none")
    one, same, other = (
        train(config, batches(rows, seed=0), n_steps=2, seed=0).W_dec
        for config in (small("batchtopk_filtered"), without_weights, reweighted)
    )
    torch.testing.assert_close(one, same)
    assert not torch.allclose(one, other)
