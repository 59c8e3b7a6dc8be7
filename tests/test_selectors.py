"""AbsTopK, Matryoshka and JumpReLU: what their selectors add to the shared contract."""

import pytest
import torch
from helpers import (
    D_IN,
    D_SAE,
    EXPONENT_MODES,
    K,
    activations,
    step,
    train,
    training_sae,
)
from sae_lens import SAE, LoggingConfig
from sae_lens.config import SAETrainerConfig
from sae_lens.training.sae_trainer import SAETrainer

from sae_lens_cosine import CosineAbsTopKSAE, CosineJumpReLUSAE
from sae_lens_cosine.aux_loss import aux_loss
from sae_lens_cosine.score import unit

MATRYOSHKA = "cosine_matryoshka_batchtopk"


def test_abstopk_keeps_k_latents_of_either_sign():
    sae = training_sae("cosine_abstopk")
    output = step(sae, activations())
    acts, hidden_pre = output.feature_acts, output.hidden_pre
    assert torch.equal((acts != 0).sum(dim=1), torch.full((64,), K))
    assert (acts < 0).any()
    assert (acts > 0).any()
    kept = acts != 0
    assert torch.equal(acts[kept], hidden_pre[kept])
    weakest = acts.abs().masked_fill(~kept, torch.inf).min(dim=1).values
    assert (hidden_pre.abs().masked_fill(kept, 0).max(dim=1).values <= weakest).all()


@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_abstopk_is_saved_as_itself(mode, tmp_path):
    sae = train(training_sae("cosine_abstopk", exponent_mode=mode))
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert type(loaded) is CosineAbsTopKSAE
    x = activations(seed=9)
    torch.testing.assert_close(loaded.encode(x), sae.encode(x), rtol=1e-5, atol=1e-5)
    assert (loaded.encode(x) < 0).any()
    out = loaded(x)
    loaded.fold_W_dec_norm()
    torch.testing.assert_close(loaded(x), out)


def test_abstopk_revives_a_dead_latent_of_negative_score():
    sae = training_sae("cosine_abstopk", k=1)
    dead = torch.arange(D_SAE) == 5
    sae.b_enc.data.fill_(1000.0)  # the live ones win every token
    sae.b_enc.data[5] = -1.0
    step(sae, activations(), dead=dead).loss.backward()
    assert sae.W_enc.grad is not None
    assert sae.W_enc.grad[:, 5].norm() > 0


def test_matryoshka_sums_the_losses_of_its_prefixes():
    sae = training_sae(MATRYOSHKA)  # widths 6, 12, 24
    output = step(sae, x := activations())
    acts, W_dec = output.feature_acts, unit(sae.W_dec, dim=1)

    def loss_of(width: int) -> torch.Tensor:
        out = acts[:, :width] @ W_dec[:width] + sae.b_dec
        return (out - x).pow(2).sum(dim=1).mean()

    torch.testing.assert_close(output.losses["inner_mse_loss_6"], loss_of(6))
    torch.testing.assert_close(output.losses["inner_mse_loss_12"], loss_of(12))
    torch.testing.assert_close(output.losses["mse_loss"], loss_of(24))
    torch.testing.assert_close(output.loss, loss_of(6) + loss_of(12) + loss_of(24))


def test_matryoshka_reconstructs_what_it_compares_with():
    # A sink is dropped for every level alike.
    sae = training_sae(MATRYOSHKA)
    x = activations()
    x[0] *= 1000
    output = step(sae, x)
    assert torch.equal(output.sae_in, x[1:])
    assert output.loss < 1e4


def test_matryoshka_prefixes_do_not_depend_on_decoder_norms():
    sae = training_sae(MATRYOSHKA)
    acts = step(sae, activations()).feature_acts
    before = [out for _, out in sae._iterable_decode(acts, include_outer_loss=True)]
    sae.W_dec.data.mul_(torch.logspace(-1, 1, D_SAE)[:, None])
    after = [out for _, out in sae._iterable_decode(acts, include_outer_loss=True)]
    assert len(before) == 3
    for a, b in zip(after, before, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(before[-1], sae.decode(acts))


def test_matryoshka_aux_loss_is_each_levels_own():
    # Dead latents 20 and 21 belong to the last level only, so the loss is that of the
    # whole SAE's residual, and the levels without dead latents add nothing.
    dead = (torch.arange(D_SAE) == 20) | (torch.arange(D_SAE) == 21)
    losses = [
        step(
            training_sae(MATRYOSHKA, use_matryoshka_aux_loss=own), activations(), dead
        ).losses["auxiliary_reconstruction_loss"]
        for own in (True, False)
    ]
    torch.testing.assert_close(*losses)
    # Latents 0 and 1 belong to the first level, whose reconstruction misses more.
    first = torch.arange(D_SAE) < 2
    sae = training_sae(MATRYOSHKA, use_matryoshka_aux_loss=True)
    output = step(sae, activations(), first)
    level_out = next(sae._iterable_decode(output.feature_acts))[1]
    expected = aux_loss(
        output.sae_in, level_out, output.hidden_pre[:, :2], sae.W_dec[:2], sae.b_dec
    )
    torch.testing.assert_close(output.losses["auxiliary_reconstruction_loss"], expected)


def test_every_matryoshka_prefix_rebuilds_sinks():
    sae = training_sae(MATRYOSHKA, matryoshka_widths=[4, 23])
    direction = unit(torch.ones(1, D_IN), dim=1)
    for seed in range(12):
        x = activations(seed=seed)
        x[:20] += 20_000 * direction
        output = step(sae, x)
    assert sae.sink_latents == [22, 23]
    assert len(output.sae_in) == 64
    for name in ("inner_mse_loss_4", "inner_mse_loss_23", "mse_loss"):
        assert output.losses[name] < 2000  # of squared norms up to 4e8


@pytest.mark.parametrize("own", [True, False])
def test_matryoshka_is_finite_with_a_zero_decoder_row(own):
    sae = training_sae(MATRYOSHKA, use_matryoshka_aux_loss=own)
    sae.W_dec.data[3] = 0
    output = step(sae, activations(), dead=torch.arange(D_SAE) < 6)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in sae.parameters() if p.grad is not None)


def test_matryoshka_is_saved_as_cosine_jumprelu(tmp_path):
    sae = train(training_sae(MATRYOSHKA))
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert isinstance(loaded, CosineJumpReLUSAE)
    assert loaded.cfg.metadata.training_architecture == MATRYOSHKA
    details = loaded.cfg.metadata.training_architecture_details
    assert details["matryoshka_widths"] == [6, 12, 24]


def test_matryoshka_adds_the_last_width():
    assert training_sae(MATRYOSHKA, matryoshka_widths=[6]).cfg.matryoshka_widths == [
        6,
        24,
    ]


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ([12, 6], r"\[12, 6\] must be strictly increasing"),
        ([6, 6], "must be strictly increasing"),
        ([0, 6], "above 0"),
        ([6, 99], r"at most d_sae=24"),
        ([], r"matryoshka_widths is empty: .*\[1, 6, 24\].*'cosine_batchtopk'"),
    ],
)
def test_matryoshka_names_bad_widths(widths, message):
    with pytest.raises(ValueError, match=message):
        training_sae(MATRYOSHKA, matryoshka_widths=widths)


def test_jumprelu_keeps_scores_above_their_thresholds():
    sae = training_sae("cosine_jumprelu")
    sae.threshold.data.uniform_(0, 3)
    acts, hidden_pre = sae.encode_with_hidden_pre(activations())
    torch.testing.assert_close(acts, hidden_pre * (hidden_pre > sae.threshold))


def test_jumprelu_quadratic_loss_is_zero_at_its_target():
    # 2 / target * (l0 - target)^2: target 24 with all 24 active is 0; target 12 gives
    # 2 / 12 * 144 = 24.
    for target, expected in ((24.0, 0.0), (12.0, 24.0)):
        sae = training_sae(
            "cosine_jumprelu", target_l0=target, jumprelu_init_threshold=0.0
        )
        sae.b_enc.data.fill_(1000.0)
        assert step(sae, activations()).losses["l0_loss"].item() == expected


def test_jumprelu_fold_divides_the_thresholds():
    sae = train(training_sae("cosine_jumprelu"))
    before = sae.threshold.detach().clone()
    sae.fold_activation_norm_scaling_factor(4.0)
    torch.testing.assert_close(sae.threshold.detach(), before / 4)


def test_jumprelu_is_saved_with_its_thresholds(tmp_path):
    sae = train(training_sae("cosine_jumprelu"), n_steps=30)
    sae.threshold.data[0] = -0.1  # an optimizer step past zero
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    assert type(loaded) is CosineJumpReLUSAE
    assert loaded.threshold[0] == 0
    assert torch.equal(loaded.threshold[1:], sae.threshold[1:])
    assert sae.threshold[0] == -0.1


def test_jumprelu_thresholds_stay_float32():
    sae = training_sae("cosine_jumprelu").to(torch.bfloat16)
    assert sae.threshold.dtype == torch.float32
    assert sae.encode(activations()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target_l0", None, "target_l0 must be set"),
        ("jumprelu_bandwidth", 0.0, "jumprelu_bandwidth=0.0 must be above 0"),
        ("jumprelu_init_threshold", -1.0, "jumprelu_init_threshold=-1.0 must not"),
        ("jumprelu_sparsity_loss_mode", "l2", "='l2' is unknown.*'quadratic'"),
    ],
)
def test_jumprelu_names_the_bad_value(field, value, message):
    with pytest.raises(ValueError, match=message):
        training_sae("cosine_jumprelu", **{field: value})


def sparse_mixtures(i: int, n: int = 512, d_in: int = 32) -> torch.Tensor:
    """Sums of about 8 of 128 directions, with norms that vary by token."""
    directions = torch.Generator().manual_seed(0)
    F = unit(torch.randn(128, d_in, generator=directions), dim=1)
    generator = torch.Generator().manual_seed(1 + i)
    on = torch.rand(n, 128, generator=generator) < 8 / 128
    size = 1 + torch.rand(n, 128, generator=generator)
    spread = torch.exp(0.3 * torch.randn(n, 1, generator=generator))
    return 3 * spread * ((on * size) @ F) + 0.5


@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_jumprelu_training_reaches_its_target_l0(mode, tmp_path):
    n_steps = 400
    sae = training_sae(
        "cosine_jumprelu",
        d_in=32,
        d_sae=256,
        target_l0=16.0,
        l0_coefficient=5.0,
        exponent_mode=mode,
    )
    cfg = SAETrainerConfig(
        total_training_samples=512 * n_steps,
        train_batch_size_samples=512,
        lr=3e-3,
        lr_end=3e-4,
        lr_decay_steps=n_steps // 5,
        logger=LoggingConfig(log_to_wandb=False),
    )
    SAETrainer(cfg, sae, (sparse_mixtures(i) for i in range(n_steps))).fit()
    sae.save_inference_model(tmp_path)
    loaded = SAE.load_from_disk(tmp_path)
    x = sparse_mixtures(10**6, n=2048)
    acts = loaded.encode(x)
    assert (acts > 0).float().sum(dim=1).mean() == pytest.approx(16, rel=0.2)
    missed = (x - loaded.decode(acts)).pow(2).sum() / (x - x.mean(0)).pow(2).sum()
    assert missed < 0.25
