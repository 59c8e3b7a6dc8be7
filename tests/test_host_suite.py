"""What SAELens's suite asserts of its own classes, asserted of ours.

By intent, from its tests of BatchTopK, TopK, AbsTopK, Matryoshka, JumpReLU and the
base class: whatever the score does not change.
"""

import copy
from pathlib import Path

import pytest
import torch
from helpers import (
    D_IN,
    D_SAE,
    TOPK_ARCHITECTURES,
    TRAINING_ARCHITECTURES,
    K,
    activations,
    step,
    train,
    training_sae,
)
from sae_lens import SAE, TrainingSAE
from sae_lens.registry import get_sae_class, get_sae_training_class
from sae_lens.saes.sae import SAEMetadata, TrainCoefficientConfig

ALL = pytest.mark.parametrize("architecture", TRAINING_ARCHITECTURES)


@pytest.fixture
def saved(tmp_path):
    def save(architecture: str, **cfg) -> tuple[TrainingSAE, SAE, Path]:
        sae = train(training_sae(architecture, **cfg), n_steps=20)
        sae.save_inference_model(tmp_path)
        return sae, SAE.load_from_disk(tmp_path), tmp_path

    return save


@ALL
def test_initialization(architecture):
    sae = training_sae(architecture)
    assert sae.W_enc.shape == (D_IN, D_SAE)
    assert sae.W_dec.shape == (D_SAE, D_IN)
    assert sae.b_enc.shape == (D_SAE,)
    assert sae.b_dec.shape == (D_IN,)
    assert torch.equal(sae.b_enc, torch.zeros(D_SAE))
    assert torch.equal(sae.b_dec, torch.zeros(D_IN))
    assert sae.W_enc.is_contiguous()
    assert sae.cfg.architecture() == architecture


@ALL
def test_step_output_has_everything_the_trainer_reads(architecture):
    dead = torch.arange(D_SAE) < 4
    output = step(training_sae(architecture), x := activations(32), dead)
    assert output.sae_in.shape == output.sae_out.shape == x.shape
    assert output.feature_acts.shape == output.hidden_pre.shape == (32, D_SAE)
    assert output.loss.shape == ()
    assert output.loss.requires_grad
    total = sum(output.losses.values())
    torch.testing.assert_close(output.loss, total)
    second = (
        "l0_loss" if "jumprelu" in architecture else "auxiliary_reconstruction_loss"
    )
    assert {"mse_loss", second} <= set(output.losses)


@pytest.mark.parametrize("architecture", TOPK_ARCHITECTURES)
def test_no_dead_latents_no_auxiliary_loss(architecture):
    for dead in (None, torch.zeros(D_SAE, dtype=torch.bool)):
        losses = step(training_sae(architecture), activations(), dead).losses
        assert losses["auxiliary_reconstruction_loss"] == 0


@ALL
def test_coefficients(architecture):
    coefficients = training_sae(
        architecture, l0_coefficient=3.0, l0_warm_up_steps=7
    ).get_coefficients()
    if architecture == "cosine_jumprelu":
        assert coefficients == {"l0": TrainCoefficientConfig(3.0, 7)}
    else:
        assert coefficients == {}


@ALL
def test_negative_thresholds_are_projected_before_a_step(architecture):
    sae = training_sae(architecture)
    if architecture != "cosine_jumprelu":
        assert not isinstance(getattr(sae, "threshold", None), torch.nn.Parameter)
        return
    sae.threshold.data.fill_(-1.0)
    acts = step(sae, activations()).feature_acts
    assert (sae.threshold == 0).all()
    assert (acts >= 0).all()


@ALL
def test_inference_config_says_how_it_was_trained(architecture, saved):
    sae, loaded, _ = saved(architecture)
    assert loaded.cfg.metadata.training_architecture == architecture
    details = loaded.cfg.metadata.training_architecture_details
    assert details["train_exponent"] is True
    assert "metadata" not in details
    assert loaded.cfg.architecture() == (
        sae.cfg.get_inference_config_class().architecture()
    )
    assert not isinstance(loaded, TrainingSAE)


@ALL
def test_config_round_trips(architecture):
    cfg = training_sae(architecture).cfg
    cfg.metadata = SAEMetadata(model_name="m", hook_name="h")
    again = type(cfg).from_dict(cfg.to_dict())
    assert again.to_dict() == cfg.to_dict()
    _, config_class = get_sae_training_class(architecture)
    assert type(again) is config_class


@ALL
def test_saved_inference_sae_saves_again_unchanged(architecture, saved, tmp_path):
    _, loaded, _ = saved(architecture)
    loaded.save_model(tmp_path / "again")
    again = SAE.load_from_disk(tmp_path / "again")
    assert again.cfg.to_dict() == loaded.cfg.to_dict()
    for key, value in loaded.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)


@ALL
def test_saved_with_a_decoder_of_any_norms(architecture, tmp_path):
    sae = train(training_sae(architecture))
    sae.W_dec.data.mul_(torch.logspace(-1, 1, D_SAE)[:, None])
    x = activations(seed=3)
    out = sae.decode(sae.encode(x))
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    torch.testing.assert_close(loaded.W_dec.norm(dim=1), torch.ones(D_SAE))
    if "batchtopk" not in architecture:
        torch.testing.assert_close(loaded(x), out, rtol=1e-4, atol=1e-4)


@ALL
def test_loading_with_fold(architecture, saved):
    _, loaded, folder = saved(architecture)
    folded = SAE.load_from_disk(folder, fold_W_dec_norm=True)
    x = activations(seed=4)
    torch.testing.assert_close(folded(x), loaded(x))


@ALL
def test_three_dimensional_input(architecture, saved):
    sae, loaded, _ = saved(architecture)
    x = activations(24)
    folded = x.reshape(4, 6, D_IN)
    torch.testing.assert_close(loaded(folded).flatten(0, 1), loaded(x))
    # the training SAE reads a batch of prompts as the batch of their tokens
    torch.testing.assert_close(sae.encode(folded).flatten(0, 1), sae.encode(x))
    torch.testing.assert_close(sae(folded).flatten(0, 1), sae(x))


@pytest.mark.parametrize("architecture", ["cosine_topk", "cosine_abstopk"])
def test_exactly_k_of_every_token_at_inference(architecture, saved):
    _, loaded, _ = saved(architecture)
    x = activations(24).reshape(4, 6, D_IN)
    counts = (loaded.encode(x) != 0).sum(dim=-1)
    assert torch.equal(counts, torch.full((4, 6), K))


@ALL
def test_hooks_see_and_change_what_flows(architecture, saved):
    _, loaded, _ = saved(architecture)
    x = activations(5)
    _, cache = loaded.run_with_cache(x)
    assert torch.equal(cache["hook_sae_input"], x)
    assert torch.equal(cache["hook_sae_acts_post"], loaded.encode(x))
    assert torch.equal(cache["hook_sae_acts_pre"], loaded.score(x))
    # without hooks, decoding adds active latents alone, in another order
    torch.testing.assert_close(cache["hook_sae_recons"], loaded(x))

    def silence(acts, hook):
        del hook
        return torch.zeros_like(acts)

    out = loaded.run_with_hooks(x, fwd_hooks=[("hook_sae_acts_post", silence)])
    torch.testing.assert_close(out, loaded.b_dec.expand_as(out))


@ALL
def test_to_keeps_config_and_attributes_in_step(architecture, saved):
    for sae in saved(architecture)[:2]:
        sae.to(dtype=torch.bfloat16)
        assert sae.dtype == sae.W_enc.dtype == torch.bfloat16
        assert sae.cfg.dtype == "bfloat16"
        sae.to("cpu", torch.float32)
        assert (sae.cfg.device, sae.cfg.dtype) == ("cpu", "float32")


@ALL
def test_copies_are_independent(architecture):
    sae = train(training_sae(architecture, loss_weighting="inverse_norm"))
    copied = copy.deepcopy(sae)
    before = {key: value.clone() for key, value in sae.state_dict().items()}
    train(copied, n_steps=3)
    for key, value in sae.state_dict().items():
        assert torch.equal(value, before[key]), key
    with torch.no_grad():
        copied.b_dec.add_(100)  # the copy's loss weights are of its own b_dec
    x = activations()
    assert step(copied, x).losses["mse_loss"] != step(sae, x).losses["mse_loss"]


@ALL
def test_evaluation_leaves_training_state(architecture):
    sae = train(training_sae(architecture))
    before = {key: value.clone() for key, value in sae.state_dict().items()}
    sae.eval()
    with torch.no_grad():
        sae(activations(seed=77))
    sae.train()
    for key, value in sae.state_dict().items():
        assert torch.equal(value, before[key]), key


@ALL
def test_the_inference_class_is_the_registered_one(architecture, saved):
    _, loaded, _ = saved(architecture)
    assert type(loaded) is get_sae_class(loaded.cfg.architecture())[0]
    assert loaded.get_name().endswith(f"_{D_SAE}")
