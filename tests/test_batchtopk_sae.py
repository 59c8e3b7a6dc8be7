import pytest
import torch
from helpers import D_SAE, K, activations, step, train, training_sae
from sae_lens import SAE

from sae_lens_cosine import CosineJumpReLUSAE


def test_k_is_an_average_over_the_batch():
    sae = training_sae()
    acts = step(sae, activations(64)).feature_acts
    assert (acts > 0).sum() == 64 * K  # 192 of 64 x 24 scores
    assert (acts > 0).sum(dim=1).unique().numel() > 1


def lowest(output) -> torch.Tensor:
    acts = output.feature_acts
    return acts[acts > 0].min().double().detach()


def test_threshold_is_a_mean_of_the_batches_that_forgets():
    # With rate 1/4 the weights 1, 3/4, 9/16 of three batches are divided by their
    # sum 37/16.
    sae = training_sae(topk_threshold_lr=0.25)
    minima = [lowest(step(sae, activations(seed=i))) for i in range(3)]
    expected = (16 * minima[2] + 12 * minima[1] + 9 * minima[0]) / 37
    torch.testing.assert_close(sae.topk_threshold, expected)


def test_threshold_is_not_zero_after_one_batch():
    sae = training_sae()
    assert sae.topk_threshold == 0
    expected = lowest(step(sae, activations()))
    assert expected > 0
    torch.testing.assert_close(sae.topk_threshold, expected)


def test_threshold_follows_the_newest_batch_until_its_start_step():
    sae = training_sae(threshold_start_step=2)
    for i in range(3):  # batches 0, 1 and 2 are followed, batch 3 is averaged
        expected = lowest(step(sae, activations(seed=i)))
        torch.testing.assert_close(sae.topk_threshold, expected)
    expected = lowest(step(sae, activations(seed=3)))
    assert (sae.topk_threshold - expected).abs() > 1e-3


def test_a_batch_without_activations_leaves_the_threshold():
    sae = training_sae()
    step(sae, activations())
    before = sae.topk_threshold.clone()
    sae.update_topk_threshold(torch.zeros(4, D_SAE))
    assert sae.topk_threshold == before


def test_saved_as_cosine_jumprelu_with_the_running_threshold(tmp_path):
    sae = train(training_sae(), n_steps=50, lr=1e-3)
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert isinstance(loaded, CosineJumpReLUSAE)
    assert loaded.cfg.metadata.training_architecture == "cosine_batchtopk"
    threshold = sae.topk_threshold.float()
    assert threshold > 0
    assert torch.equal(loaded.threshold, threshold.expand(D_SAE))
    # what the batch selection keeps above the threshold, inference keeps the same
    x = activations(seed=50)
    acts, loaded_acts = sae.encode(x), loaded.encode(x)
    both = (acts > 0) & (loaded_acts > 0)
    assert both.sum() > 0.8 * (acts > 0).sum()
    torch.testing.assert_close(loaded_acts[both], acts[both], rtol=1e-6, atol=1e-6)


def test_threshold_stays_float64_when_the_weights_are_cast():
    # A bfloat16 average on its way from 1 to 0.8 stops at 0.977.
    sae = training_sae().to(torch.bfloat16)
    assert sae.topk_threshold.dtype == torch.float64


def test_fold_divides_the_threshold():
    sae = train(training_sae())
    before = sae.topk_threshold.clone()
    sae.fold_activation_norm_scaling_factor(4.0)
    torch.testing.assert_close(sae.topk_threshold, before / 4)


def test_a_k_that_selects_nothing_is_refused():
    sae = training_sae(k=0.01)
    with pytest.raises(ValueError, match=r"k=0.01 over a batch of 64 rows selects no"):
        step(sae, activations(64))
    step(sae, activations(200))  # 2 of 200 tokens


@pytest.mark.parametrize(
    "architecture", ["cosine_batchtopk", "sink_batchtopk", "reweighted_batchtopk"]
)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topk_threshold_lr", 0.0),
        ("topk_threshold_lr", 2.0),
        ("threshold_start_step", -1),
    ],
)
def test_a_rate_that_breaks_the_average_is_refused(architecture, field, value):
    with pytest.raises(ValueError, match=f"{field}={value} must"):
        training_sae(architecture, **{field: value})
