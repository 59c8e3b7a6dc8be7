"""Folds, precision and shapes of every class, over random cases."""

import copy

import pytest
import torch
from helpers import (
    D_IN,
    D_SAE,
    EXPONENT_MODES,
    TRAINING_ARCHITECTURES,
    K,
    activations,
    train,
    training_sae,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sae_lens import SAE

from sae_lens_cosine import (
    CosineAbsTopKSAE,
    CosineAbsTopKSAEConfig,
    CosineJumpReLUSAE,
    CosineJumpReLUSAEConfig,
    CosineTopKSAE,
    CosineTopKSAEConfig,
)
from sae_lens_cosine.score import unit

INFERENCE = ("jumprelu", "topk", "abstopk")
# Rounding of one operation, times a few for those that follow one another.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}
cases = settings(max_examples=40, deadline=None, derandomize=True, database=None)
dtypes = st.sampled_from(sorted(TOLERANCE, key=str))
modes = st.sampled_from(EXPONENT_MODES)
seeds = st.integers(0, 2**16)
factors = st.floats(-2, 2).map(lambda power: 10.0**power)
zero_rows = st.sets(st.integers(0, D_SAE - 1), max_size=3).map(sorted)


def inference_sae(name: str, mode: str, seed: int, zeros: list[int]) -> SAE:
    """Random weights of training's size, decoder norms 0.1 to 10 and some rows 0."""
    torch.manual_seed(seed)
    if name == "jumprelu":
        cfg = CosineJumpReLUSAEConfig(D_IN, D_SAE, exponent_mode=mode)
        sae: SAE = CosineJumpReLUSAE(cfg)
        sae.threshold.data.uniform_(0, 2)
    else:
        classes = {
            "topk": (CosineTopKSAE, CosineTopKSAEConfig),
            "abstopk": (CosineAbsTopKSAE, CosineAbsTopKSAEConfig),
        }
        cls, config = classes[name]
        fields = {"k": K, "rescale_acts_by_decoder_norm": True, "exponent_mode": mode}
        sae = cls(config(D_IN, D_SAE, **fields))
    sae.W_enc.data.copy_(3 * unit(torch.randn(D_IN, D_SAE), dim=0))
    norms = 10 ** (2 * torch.rand(D_SAE, 1) - 1)
    sae.W_dec.data.copy_(unit(torch.randn(D_SAE, D_IN), dim=1) * norms)
    sae.W_dec.data[zeros] = 0
    sae.b_dec.data.normal_()
    sae.b_enc.data.normal_().mul_(0.3)
    sae.exponent.data.uniform_(-0.3, 0.8)
    return sae


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Within ``tolerance`` of the largest expected value in each row."""
    scale = expected.abs().amax(dim=-1, keepdim=True).clamp(min=1e-3)
    assert ((actual.double() - expected.double()).abs() <= tolerance * scale).all()


@pytest.mark.parametrize("name", INFERENCE)
@given(mode=modes, dtype=dtypes, seed=seeds, zeros=zero_rows)
@cases
def test_fold_of_the_decoder_norm(name, mode, dtype, seed, zeros):
    sae = inference_sae(name, mode, seed, zeros).to(dtype)
    x = activations(8, seed).to(dtype)
    tolerance = TOLERANCE[dtype]
    before, score = copy.deepcopy(sae), sae.score(x)
    norm = before.W_dec.double().norm(dim=1)
    norm[zeros] = 1
    for _ in range(2):
        sae.fold_W_dec_norm()
        close(sae.score(x), score.double() * norm, tolerance)
        rows = sae.W_dec.double().norm(dim=1)
        expected = torch.ones(D_SAE, dtype=torch.float64)
        expected[zeros] = 0
        limit = 1e-5 if dtype in (torch.float32, torch.float64) else tolerance
        torch.testing.assert_close(rows, expected, rtol=0, atol=limit)
        if name == "jumprelu":
            assert sae.threshold.dtype == torch.promote_types(dtype, torch.float32)
            torch.testing.assert_close(
                sae.threshold.double(),
                before.threshold.double() * norm,
                rtol=max(tolerance, 1e-6),
                atol=0,
            )
            assert torch.equal(sae.threshold[zeros], before.threshold[zeros])
        assert torch.equal(sae.W_enc[:, zeros], before.W_enc[:, zeros])
    if dtype == torch.float32 and name == "jumprelu":
        close(sae(x), before(x), 1e-4)
        off = (sae.encode(x) > 0) != (before.encode(x) > 0)
        margin = (score - before.threshold).abs() / score.abs().clamp(min=1)
        assert (margin[off] < 1e-5).all()


@pytest.mark.parametrize("name", INFERENCE)
@given(mode=modes, dtype=dtypes, seed=seeds, factor=factors)
@cases
def test_fold_of_the_activation_scale(name, mode, dtype, seed, factor):
    sae = inference_sae(name, mode, seed, [])
    sae.W_dec.data.copy_(unit(sae.W_dec, dim=1))
    sae = sae.to(dtype)
    x = activations(8, seed).to(dtype)  # what the SAE was trained on, factor * raw
    raw = (x.double() / factor).to(dtype)
    score, W_dec, b_dec = sae.score(x), sae.W_dec.clone(), sae.b_dec.clone()
    sae.fold_activation_norm_scaling_factor(factor)
    # Near b_dec the difference of two rounded numbers is noise: no relative error.
    near = (x - b_dec).double().norm(dim=1) < 0.3 * x.double().norm(dim=1)
    close(sae.score(raw)[~near], score[~near], 3 * TOLERANCE[dtype])
    close(sae.W_dec.double() * factor, W_dec, TOLERANCE[dtype])
    assert sae.cfg.normalize_activations == "none"


@pytest.mark.parametrize("architecture", TRAINING_ARCHITECTURES)
@given(mode=modes, seed=seeds, factor=factors, zeros=zero_rows)
@settings(cases, max_examples=15)
def test_training_folds(architecture, mode, seed, factor, zeros):
    sae = train(training_sae(architecture, exponent_mode=mode), n_steps=3)
    torch.manual_seed(seed)
    sae.W_dec.data.mul_(10 ** (2 * torch.rand(D_SAE, 1) - 1))
    sae.W_dec.data[zeros] = 0
    x = activations(16, seed)
    acts, score = sae.encode_with_hidden_pre(x)
    out = sae.decode(acts)
    for _ in range(2):
        sae.fold_W_dec_norm()
        close(sae.decode(acts), out, 1e-5)
        assert torch.equal(sae.encode(x), acts)
        expected = torch.ones(D_SAE)
        expected[zeros] = 0
        torch.testing.assert_close(sae.W_dec.norm(dim=1), expected, rtol=0, atol=1e-5)
    sae.fold_activation_norm_scaling_factor(factor)
    _, folded = sae.encode_with_hidden_pre(x / factor)
    close(folded * factor, score, 1e-4)
    close(sae.decode(acts / factor) * factor, out, 1e-4)


@pytest.mark.parametrize("architecture", TRAINING_ARCHITECTURES)
@given(mode=modes, dtype=dtypes)
@settings(cases, max_examples=8)
def test_cast_trained_saes_save_and_load(architecture, mode, dtype, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sae")
    sae = train(training_sae(architecture, exponent_mode=mode), n_steps=3).to(dtype)
    x = activations(16).to(dtype)
    _, score = sae.encode_with_hidden_pre(x)
    assert score.dtype == dtype
    sae.save_inference_model(folder)
    loaded = SAE.load_from_disk(folder)  # through the meta device
    assert loaded.W_enc.dtype == loaded.encode(x).dtype == dtype
    assert not any(p.is_meta for p in loaded.parameters())
    floor = torch.promote_types(dtype, torch.float32)
    assert loaded.exponent.dtype == floor
    close(loaded.score(x), score, TOLERANCE[dtype])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loaded(x).isfinite().all()
    # SAELens's loader casts first: the scalars are rounded once, then kept in float32
    half = SAE.load_from_disk(folder, dtype="bfloat16")
    assert half.W_enc.dtype == half.encode(x).dtype == torch.bfloat16
    assert half.exponent.dtype == torch.float32
    assert torch.equal(half.exponent, sae.exponent.bfloat16().float())
    if isinstance(half, CosineJumpReLUSAE):
        assert half.threshold.dtype == torch.float32


@pytest.mark.parametrize("architecture", TRAINING_ARCHITECTURES)
@given(mode=modes, dtype=dtypes, zeros=st.sets(st.integers(0, 15), max_size=16))
@settings(cases, max_examples=8)
def test_zero_rows_and_zero_decoder_rows_stay_finite(architecture, mode, dtype, zeros):
    from helpers import step

    sae = training_sae(
        architecture,
        exponent_mode=mode,
        dtype=str(dtype).removeprefix("torch."),
        b_dec_init_method="zeros",
    )
    sae.W_dec.data[:2] = 0
    x = activations(16).to(dtype)
    x[sorted(zeros)] = 0
    output = step(sae, x, dead=torch.arange(D_SAE) < 6)
    output.loss.backward()
    assert output.loss.isfinite()
    assert output.sae_out.isfinite().all()
    for name, parameter in sae.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
