"""Attention sinks through training, saving, folding and casting."""

import copy
import json

import pytest
import torch
from helpers import (
    D_IN,
    EXPONENT_MODES,
    TRAINING_ARCHITECTURES,
    K,
    step,
    training_sae,
)
from sae_lens import SAE, TrainingSAE

from sae_lens_cosine import sink_estimation

D_SAE = 40
DIRECTIONS = torch.linalg.qr(
    torch.randn(D_IN, 2, generator=torch.Generator().manual_seed(8))
)[0].T
ARCHITECTURES = (*TRAINING_ARCHITECTURES, "sink_batchtopk")
EVERY = pytest.mark.parametrize(
    ("architecture", "mode"),
    [
        *((a, m) for a in TRAINING_ARCHITECTURES for m in EXPONENT_MODES),
        ("sink_batchtopk", None),
    ],
)


def batch(seed: int, n_sinks: int = 20, n: int = 100) -> torch.Tensor:
    """Tokens of norm 3, then sinks of norm 3000 in the span of DIRECTIONS."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + n_sinks, D_IN, generator=generator) + 0.2
    coefficients = torch.randn(n_sinks, 2, generator=generator)
    scale = torch.tensor([1.0, 0.3])
    x[n:] += 3000 * torch.nn.functional.normalize(coefficients) * scale @ DIRECTIONS
    return x


def make(architecture: str, mode: str | None = "global", **cfg) -> TrainingSAE:
    if mode is not None:
        cfg["exponent_mode"] = mode
    return training_sae(architecture, d_sae=D_SAE, **cfg)


def train(sae: TrainingSAE, n_steps: int = 12, n_sinks: int = 20) -> TrainingSAE:
    optimizer = torch.optim.Adam(sae.parameters(), lr=1e-2)
    for i in range(n_steps):
        step(sae, batch(i, n_sinks)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return sae


@EVERY
def test_sinks_are_found_and_rebuilt(architecture, mode):
    sae = train(make(architecture, mode))
    assert sae.sink_latents == list(range(D_SAE - 4, D_SAE))
    # ten times the median norm, 64 sinks having come within four batches
    assert 25 < sae.sink_norm_limit < 40
    found = sae.sink_directions[:2]
    cosines = torch.linalg.svdvals(found @ DIRECTIONS.T)
    torch.testing.assert_close(cosines, torch.ones(2), atol=1e-5, rtol=0)
    x = batch(99)
    output = step(sae, x)
    assert torch.equal(output.sae_in, x)  # nothing is dropped any more
    assert output.metrics["dropped_token_share"] == 0
    error = (output.sae_out - x).norm(dim=1)
    assert error[100:].max() < 10  # of norms up to 3000
    reserved = output.feature_acts[:, sae.sink_latents]
    assert (reserved[:100] == 0).all()
    assert ((reserved[100:] > 0).sum(dim=1) == 2).all()


@EVERY
def test_reserved_latents_do_not_compete(architecture, mode):
    sae = train(make(architecture, mode))
    output = step(sae, batch(99))
    ordinary = output.feature_acts[:, : D_SAE - 4]
    metric = output.metrics["l0_without_sink_latents"]
    assert callable(metric)
    if architecture == "cosine_jumprelu":  # has no k, and counts only the ordinary
        l0 = ordinary.count_nonzero(dim=1).float()
        assert metric() == l0.mean()
        expected = (2 / 3 * (l0 - 3) ** 2).mean()
        torch.testing.assert_close(output.losses["l0_loss"], expected)
        return
    assert (ordinary != 0).sum() == 120 * K
    assert metric() == K
    if "batchtopk" in architecture:
        assert sae.topk_threshold <= ordinary[ordinary > 0].max()
        assert sae.topk_threshold > 0.01  # SAELens starts its average at zero


@EVERY
def test_tokens_within_the_limit_are_untouched(architecture, mode):
    sae = train(make(architecture, mode))
    x_c, sink_pre = sae.read(x := batch(99))
    bias = sae.b_dec * sae.cfg.apply_b_dec_to_input
    assert torch.equal(x_c[:100], (x - bias)[:100])
    assert (sink_pre[:100] == 0).all()


def test_a_token_exactly_at_the_limit_is_no_sink():
    sae = train(make("cosine_batchtopk"))
    sae.sink_limit.fill_(5.0)
    x = torch.zeros(2, D_IN)
    x[0, :2] = torch.tensor([3.0, 4.0])  # norm 5
    x[1, :2] = torch.tensor([3.0, 4.001])
    _, sink_pre = sae.read(x)
    assert (sink_pre[0] == 0).all()
    assert (sink_pre[1] != 0).any()


@EVERY
def test_weights_of_reserved_latents_do_not_drift(architecture, mode):
    sae = train(make(architecture, mode), 30)
    step(sae, batch(50))
    signed = torch.cat([sae.sink_directions[:2], -sae.sink_directions[:2]])
    assert torch.equal(sae.W_dec[-4:], signed)
    assert torch.equal(sae.W_enc[:, -4:], signed.T)
    output = step(sae, batch(51))
    output.loss.backward()
    assert (sae.W_dec.grad[-4:] == 0).all()
    assert (sae.W_enc.grad[:, -4:] == 0).all()


@EVERY
def test_without_sinks_it_is_the_plain_sae_bit_for_bit(architecture, mode, monkeypatch):
    monkeypatch.setattr(sink_estimation, "MAX_BATCHES", 5)
    n_steps = 8
    treated = train(make(architecture, mode), n_steps, n_sinks=0)
    plain = train(make(architecture, mode, sink_rank=0), n_steps, n_sinks=0)
    assert treated.sink_estimator.is_done
    assert treated.sink_latents == []
    assert treated.sink_norm_limit is None
    for key, value in plain.state_dict().items():
        assert torch.equal(treated.state_dict()[key], value), key
    x = batch(99, n_sinks=0)
    assert torch.equal(treated.encode(x), plain.encode(x))


@EVERY
def test_saved_and_loaded(architecture, mode, tmp_path):
    sae = train(make(architecture, mode))
    live = copy.deepcopy(sae.state_dict())
    sae.save_inference_model(tmp_path)
    for key, value in sae.state_dict().items():
        assert torch.equal(value, live[key]), key
    loaded = SAE.load_from_disk(tmp_path)
    assert loaded.sink_latents == sae.sink_latents
    assert loaded.sink_norm_limit == sae.sink_norm_limit
    x = batch(99)
    torch.testing.assert_close(
        loaded.encode(x)[:, -4:], sae.encode(x)[:, -4:], rtol=1e-5, atol=1e-2
    )
    assert (loaded(x) - x)[100:].norm(dim=1).max() < 10
    _, hidden_pre = sae.encode_with_hidden_pre(x)
    if architecture != "sink_batchtopk":
        torch.testing.assert_close(
            loaded.score(x)[:, :-4], hidden_pre[:, :-4], rtol=1e-4, atol=1e-2
        )
    # decoder rows are unit, so SAEBench takes it
    torch.testing.assert_close(loaded.W_dec.norm(dim=1), torch.ones(D_SAE))
    # rows are independent: one sink alone gives the same latents
    torch.testing.assert_close(
        loaded.encode(x[-1]), loaded.encode(x)[-1], rtol=1e-3, atol=1e-3
    )


def test_the_baseline_saves_the_inner_product(tmp_path):
    sae = train(make("sink_batchtopk", None))
    sae.save_inference_model(tmp_path)
    assert json.loads((tmp_path / "cfg.json").read_text())["architecture"] == (
        "cosine_jumprelu"
    )
    loaded = SAE.load_from_disk(tmp_path)
    assert loaded.exponent == 1
    x = batch(99)
    _, hidden_pre = sae.encode_with_hidden_pre(x)
    torch.testing.assert_close(
        loaded.score(x)[:, :-4],
        hidden_pre[:, :-4],
        rtol=1e-4,
        atol=1e-3,
    )


@EVERY
@pytest.mark.parametrize("scaling_factor", [0.01, 100.0])
def test_folds_keep_the_sinks(architecture, mode, scaling_factor, tmp_path):
    sae = train(make(architecture, mode))
    sae.save_inference_model(tmp_path)
    for held in (sae, SAE.load_from_disk(tmp_path)):
        limit = held.sink_norm_limit
        x = batch(99) / scaling_factor
        out = held(scaling_factor * x)
        held.fold_activation_norm_scaling_factor(scaling_factor)
        assert held.sink_norm_limit == pytest.approx(limit / scaling_factor)
        torch.testing.assert_close(held(x) * scaling_factor, out, rtol=1e-3, atol=1e-2)
        held.fold_W_dec_norm()
        held.fold_W_dec_norm()
        torch.testing.assert_close(held(x) * scaling_factor, out, rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(held.W_dec.norm(dim=1), torch.ones(D_SAE))


@EVERY
def test_resumed_in_the_middle_of_the_estimation(architecture, mode, tmp_path):
    whole = train(make(architecture, mode), 2)
    whole.save_model(tmp_path)
    assert whole.sink_latents == []
    resumed = make(architecture, mode)
    resumed.load_weights_from_checkpoint(tmp_path)
    for i in range(2, 5):
        a, b = step(whole, batch(i)), step(resumed, batch(i))
        assert torch.equal(a.sae_out, b.sae_out)
    assert len(resumed.sink_latents) == 4
    assert torch.equal(resumed.sink_directions, whole.sink_directions)


def test_estimation_never_runs_again(tmp_path):
    sae = train(make("cosine_batchtopk"))
    sae.save_model(tmp_path)
    loaded = TrainingSAE.load_from_disk(tmp_path)
    before = loaded.sink_directions.clone()
    for i in range(10):
        step(loaded, 10 * batch(i))
    assert torch.equal(loaded.sink_directions, before)


@pytest.mark.parametrize("sink_rank", [2, 3])
def test_a_direction_never_seen_is_dropped_counted_and_warned_about(caplog, sink_rank):
    sae = train(make("cosine_batchtopk", sink_rank=sink_rank))
    new = torch.linalg.svd(sae.sink_directions[:2], full_matrices=True)[2][-1]
    x = torch.cat([batch(99), 3000 * new[None]])
    output = step(sae, x)
    assert output.sae_in.shape[0] == 120
    assert output.metrics["dropped_token_share"].item() == pytest.approx(1 / 121)
    assert "in the 2 sink directions of the first batches" in caplog.text
    # no way out where more were allowed than were found
    assert ("raise sink_rank" in caplog.text) == (sink_rank == 2)


def test_a_batch_of_sinks_never_seen_is_refused():
    sae = train(make("cosine_batchtopk"))
    new = torch.linalg.svd(sae.sink_directions[:2], full_matrices=True)[2][-1]
    with pytest.raises(ValueError, match="All 5 tokens of a batch are beyond"):
        step(sae, 3000 * new.repeat(5, 1))


@EVERY
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_training_goes_on_in_low_precision(architecture, mode, dtype):
    sae = train(make(architecture, mode))
    sae = sae.to(getattr(torch, dtype))
    output = step(sae, batch(50))
    output.loss.backward()
    assert output.sae_out.dtype == getattr(torch, dtype)
    assert all(torch.isfinite(p.grad).all() for p in sae.parameters())


@EVERY
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_keeps_directions_orthonormal(
    architecture, mode, dtype, tmp_path
):
    sae = train(make(architecture, mode))
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path, dtype=dtype)
    assert loaded.sink_directions.dtype == torch.float32
    found = loaded.sink_directions[:2]
    torch.testing.assert_close(found @ found.T, torch.eye(2), atol=1e-5, rtol=0)
    # The direction itself was rounded once: 2^-9 of a norm of 3000 is 6.
    x = batch(99)
    remainder, _ = loaded.read(x)
    assert remainder[100:].float().norm(dim=1).max() < 30
    error = (loaded(x).float() - x)[100:].norm(dim=1)
    assert error.max() < 0.02 * 3000
    assert loaded.encode(x).isfinite().all()


@EVERY
def test_zero_and_bad_rows(architecture, mode):
    sae = train(make(architecture, mode))
    x = batch(99)
    x[3] = 0
    assert step(sae, x).loss.isfinite()
    x[110, 1] = float("nan")
    before = copy.deepcopy(sae.state_dict())
    with pytest.raises(ValueError, match="1 of 120 activation rows"):
        step(sae, x)
    for key, value in sae.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_autocast_keeps_the_sink_part_exact():
    sae = train(make("cosine_batchtopk"))
    x = batch(99)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        remainder, _ = sae.read(x)
    assert remainder[100:].norm(dim=1).max() < 10


def test_silent_reserved_latents_get_no_aux_loss():
    sae = train(make("cosine_batchtopk"))
    dead = torch.zeros(D_SAE, dtype=torch.bool)
    dead[-4:] = True
    output = step(sae, batch(99, n_sinks=0), dead=dead)
    assert output.losses["auxiliary_reconstruction_loss"] == 0
    assert dead[-4:].all()  # the trainer's mask is not touched


@pytest.mark.parametrize("architecture", ["cosine_batchtopk", "cosine_abstopk"])
@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_gradients_are_those_of_the_written_out_model(architecture, mode):
    sae = train(make(architecture, mode)).double()
    sae.sink_directions = torch.linalg.qr(sae.sink_directions[:2].T)[0].T
    x = batch(99).double()
    output = step(sae, x)
    output.loss.backward()
    gradient = sae.b_dec.grad.clone()

    # the same loss with the sink part as a plain function of b_dec
    sae.zero_grad()
    acts, _ = sae.encode_with_hidden_pre(x)
    V = sae.sink_directions
    is_sink = (x.norm(dim=1) > sae.sink_norm_limit)[:, None]
    ordinary = acts.clone()
    ordinary[:, -4:] = 0
    sink_part = ((x - sae.b_dec) @ V.T * is_sink) @ V
    out = sae.decode(ordinary) + sink_part
    (out - x).pow(2).sum(dim=-1).mean().backward()
    torch.testing.assert_close(sae.b_dec.grad, gradient, rtol=1e-6, atol=1e-6)
