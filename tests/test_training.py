"""What every training SAE with a cosine score does, whatever its selector."""

import json
import math

import pytest
import torch
from helpers import (
    D_IN,
    D_SAE,
    EXPONENT_MODES,
    TOPK_ARCHITECTURES,
    TRAINING_ARCHITECTURES,
    activations,
    step,
    train,
    training_sae,
)
from sae_lens import SAE, TrainingSAE, TrainingSAEConfig

EVERY = pytest.mark.parametrize(
    ("architecture", "mode"),
    [(name, mode) for name in TRAINING_ARCHITECTURES for mode in EXPONENT_MODES],
)


@EVERY
def test_training_lowers_the_loss(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode)
    x = activations(256, seed=99)
    first = step(sae, x).loss.item()
    train(sae, 100)
    assert step(sae, x).loss.item() < 0.7 * first


@EVERY
def test_start(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode)
    assert torch.equal(sae.W_enc, sae.W_dec.T)
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(D_SAE))
    assert torch.equal(sae.exponent, torch.zeros_like(sae.exponent))
    assert sae.exponent.shape == (() if mode == "global" else (D_SAE,))
    torch.testing.assert_close(
        sae.log_scale, torch.full_like(sae.log_scale, math.log(math.sqrt(D_IN)))
    )


@EVERY
def test_saved_for_inference_gives_the_same_scores(architecture, mode, tmp_path):
    sae = train(training_sae(architecture, exponent_mode=mode))
    live = {key: value.clone() for key, value in sae.state_dict().items()}
    sae.save_inference_model(tmp_path)
    for key, value in sae.state_dict().items():
        assert torch.equal(value, live[key]), f"saving changed the live {key}"
    loaded = SAE.load_from_disk(tmp_path)
    x = activations(32, seed=7)
    _, hidden_pre = sae.encode_with_hidden_pre(x)
    torch.testing.assert_close(loaded.score(x), hidden_pre, rtol=1e-5, atol=1e-5)
    acts = loaded.encode(x)
    torch.testing.assert_close(loaded.decode(acts), sae.decode(acts))
    assert loaded.W_enc.untyped_storage().data_ptr() != (
        sae.W_enc.untyped_storage().data_ptr()
    )


@EVERY
def test_checkpoint_round_trip_is_exact(architecture, mode, tmp_path):
    sae = train(training_sae(architecture, exponent_mode=mode))
    sae.save_model(tmp_path)
    loaded = training_sae(architecture, exponent_mode=mode)
    loaded.load_weights_from_checkpoint(tmp_path)
    for key, value in sae.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    # a loaded SAE goes on: its first batch does not initialise it again
    before = loaded.b_dec.detach().clone()
    step(loaded, activations(seed=3) + 100)
    assert torch.equal(loaded.b_dec, before)
    assert loaded.n_batches_trained == sae.n_batches_trained + 1


@EVERY
def test_decoder_gradient_is_orthogonal_to_its_rows(architecture, mode):
    sae = train(training_sae(architecture, exponent_mode=mode))
    step(sae, activations(), dead=torch.arange(D_SAE) < 4).loss.backward()
    assert sae.W_dec.grad is not None
    parallel = (sae.W_dec.grad * sae.W_dec).sum(dim=1)
    assert parallel.abs().max() < 1e-3 * sae.W_dec.grad.norm(dim=1).max()
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(D_SAE))


@EVERY
def test_decoder_norms_change_no_output(architecture, mode):
    sae = train(training_sae(architecture, exponent_mode=mode))
    x = activations()
    acts, out = sae.encode(x), sae(x)
    sae.W_dec.data.mul_(torch.logspace(-1, 1, D_SAE)[:, None])
    torch.testing.assert_close(sae.encode(x), acts)
    torch.testing.assert_close(sae(x), out)
    sae.fold_W_dec_norm()
    torch.testing.assert_close(sae(x), out)
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(D_SAE))


@pytest.mark.parametrize("scaling_factor", [0.01, 3.0, 100.0])
@EVERY
def test_fold_of_the_activation_scale(architecture, mode, scaling_factor):
    sae = train(training_sae(architecture, exponent_mode=mode))
    x = activations() / scaling_factor
    acts, out = sae.encode(scaling_factor * x), sae(scaling_factor * x)
    sae.fold_activation_norm_scaling_factor(scaling_factor)
    torch.testing.assert_close(
        sae.encode(x) * scaling_factor, acts, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(sae(x) * scaling_factor, out, rtol=1e-4, atol=1e-4)


@EVERY
def test_dead_latents_get_an_encoder_gradient_from_the_aux_loss(architecture, mode):
    # JumpReLU has a loss on the scores of dead latents instead, off by default.
    sae = training_sae(architecture, exponent_mode=mode, pre_act_loss_coefficient=1e-3)
    dead = torch.arange(D_SAE) < 4
    sae.b_enc.data[dead] = -100  # never selected
    step(sae, activations(), dead=dead).loss.backward()
    assert sae.W_enc.grad is not None
    assert (sae.W_enc.grad[:, dead].norm(dim=0) > 0).all()


@EVERY
def test_zero_rows_leave_the_gradients_finite(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode, b_dec_init_method="zeros")
    x = activations()
    x[3] = 0
    output = step(sae, x)
    output.loss.backward()
    assert output.loss.isfinite()
    for name, parameter in sae.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@EVERY
def test_bad_rows_change_nothing(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode)
    before = {key: value.clone() for key, value in sae.state_dict().items()}
    x = activations()
    x[5, 2] = float("nan")
    with pytest.raises(ValueError, match=r"1 of 64 activation rows .* row 5"):
        step(sae, x)
    with pytest.raises(ValueError, match=r"width 3 .* d_in=8"):
        step(sae, torch.ones(4, 3))
    for key, value in sae.state_dict().items():
        assert torch.equal(value, before[key]), key


@EVERY
def test_sinks_are_dropped_from_the_step(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode)
    x = activations()
    x[0] *= 1000
    output = step(sae, x)
    assert torch.equal(output.sae_in, x[1:])
    assert output.sae_out.shape == (63, D_IN)
    # one of 64 rows: 0.015625
    assert output.metrics["dropped_token_share"] == 1 / 64


def test_outlier_multiple_none_keeps_every_row():
    sae = training_sae(outlier_norm_multiple=None, sink_rank=0)
    x = activations()
    x[0] *= 1000
    output = step(sae, x)
    assert torch.equal(output.sae_in, x)
    assert output.metrics["dropped_token_share"] == 0.0


@pytest.mark.parametrize("initial_exponent", [0.0, 1.0])
def test_frozen_controls_do_not_train(initial_exponent):
    sae = training_sae(
        initial_exponent=initial_exponent,
        train_exponent=False,
        train_log_scale=False,
        exponent_mode="per_feature",
    )
    step(sae, activations())
    log_scale = sae.log_scale.detach().clone()
    train(sae)
    assert torch.equal(sae.exponent, torch.full((D_SAE,), initial_exponent))
    assert torch.equal(sae.log_scale, log_scale)


def test_exponent_one_starts_as_the_inner_product_with_unit_rows():
    sae = training_sae(initial_exponent=1.0)
    step(sae, activations())
    _, hidden_pre = sae.encode_with_hidden_pre(x := activations())
    torch.testing.assert_close(
        hidden_pre, (x - sae.b_dec) @ (sae.W_enc / sae.W_enc.norm(dim=0)) + sae.b_enc
    )


def test_a_given_log_scale_survives_the_first_batch():
    sae = training_sae(initial_log_scale=0.25)
    step(sae, activations())
    assert sae.log_scale.item() == 0.25


@EVERY
def test_learned_values_are_logged(architecture, mode):
    sae = train(training_sae(architecture, exponent_mode=mode))
    metrics = step(sae, activations()).metrics
    low, mean, high = (
        metrics[f"exponent_{statistic}"].item() for statistic in ("min", "mean", "max")
    )
    assert low <= mean <= high
    assert mean != 0
    torch.testing.assert_close(metrics["scale_mean"], sae.log_scale.exp().mean())
    assert ("weights/exponent" in sae.log_histograms()) == (mode == "per_feature")


@EVERY
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_scalars_are_at_least_float32(architecture, mode, dtype, tmp_path):
    sae = training_sae(architecture, exponent_mode=mode, dtype=dtype)
    step(sae, activations().to(sae.dtype)).loss.backward()
    assert sae.W_enc.dtype == sae.dtype
    sae.save_model(tmp_path)
    for held in (sae, sae.to(torch.bfloat16), TrainingSAE.load_from_disk(tmp_path)):
        assert held.exponent.dtype in (torch.float32, torch.float64)
        assert held.log_scale.dtype in (torch.float32, torch.float64)
        assert held.n_batches_trained.dtype == torch.float64
        assert held.n_batches_trained == 1


@EVERY
def test_autocast_trains(architecture, mode):
    sae = training_sae(architecture, exponent_mode=mode)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = step(sae, activations())
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in sae.parameters() if p.grad is not None)


def test_a_training_checkpoint_is_no_inference_sae(tmp_path):
    for architecture in TRAINING_ARCHITECTURES:
        folder = tmp_path / architecture
        training_sae(architecture).save_model(folder)
        with pytest.raises(ValueError, match=r"training checkpoint.*save_inference"):
            SAE.load_from_disk(folder)


def test_an_inference_sae_is_no_training_checkpoint(tmp_path):
    training_sae("cosine_topk").save_inference_model(tmp_path)
    with pytest.raises(ValueError, match="inference SAE, not a training checkpoint"):
        TrainingSAE.load_from_disk(tmp_path)


def test_config_survives_a_json_file():
    cfg = TrainingSAEConfig.from_dict(
        {
            "architecture": "cosine_batchtopk",
            "d_in": 4,
            "d_sae": 8,
            "k": 2,
            "exponent_mode": "per_feature",
        }
    )
    assert TrainingSAEConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("exponent_mode", "both", "exponent_mode='both' is unknown.*'per_feature'"),
        ("log_scale_init", "big", "log_scale_init='big' is unknown.*'sqrt_d'"),
        ("b_dec_init_method", "max", "b_dec_init_method='max' is unknown"),
        ("normalize_activations", "covariance_whitening", "cannot be combined"),
        ("normalize_activations", "layer_norm", "cannot be combined"),
        ("normalize_activations", "constant_norm_rescale", "cannot be combined"),
        ("outlier_norm_multiple", 0.5, "outlier_norm_multiple=0.5 must be a number"),
        ("outlier_norm_multiple", math.nan, "outlier_norm_multiple=nan must be"),
        ("outlier_norm_multiple", "10", "outlier_norm_multiple='10' must be a number"),
        ("outlier_norm_multiple", None, "sink_rank=3 needs outlier_norm_multiple"),
        ("sink_rank", -1, "sink_rank=-1 must be a whole number"),
        ("decoder_init_norm", 0.1, "decoder_init_norm=0.1 has no effect"),
        ("rescale_acts_by_decoder_norm", False, "trained with unit decoder rows"),
        ("sink_rank", 2.0, "sink_rank=2.0 must be a whole number"),
        ("sink_rank", True, "sink_rank=True must be a whole number"),
        ("sink_rank", "3", "sink_rank='3' must be a whole number"),
        ("initial_exponent", float("nan"), "initial_exponent=nan must be"),
        ("initial_log_scale", 1e9, "initial_log_scale=1000000000.0 must be"),
        ("k", 0, "k=0 must be above 0"),
        ("k", 99, "k=99 must be above 0 and at most d_sae=24"),
    ],
)
@pytest.mark.parametrize("architecture", TRAINING_ARCHITECTURES)
def test_config_names_the_bad_value(architecture, field, value, message):
    if field in ("k", "rescale_acts_by_decoder_norm") and (
        architecture not in TOPK_ARCHITECTURES
    ):
        pytest.skip(f"{architecture} has no {field}")
    with pytest.raises(ValueError, match=message):
        training_sae(architecture, **{field: value})
