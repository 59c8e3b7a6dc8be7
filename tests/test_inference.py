"""Oracles and contract of the inference SAEs."""

import copy

import pytest
import torch
from helpers import D_IN, D_SAE, EXPONENT_MODES, K, activations
from sae_lens import JumpReLUSAE, JumpReLUSAEConfig, TopKSAE, TopKSAEConfig

from sae_lens_cosine import (
    CosineJumpReLUSAE,
    CosineJumpReLUSAEConfig,
    CosineTopKSAE,
    CosineTopKSAEConfig,
)


def make(name: str, mode: str = "global", exponent: float | None = None, **cfg):
    """A random SAE whose decoder norms run from 0.1 to 10."""
    torch.manual_seed(1)
    if name == "jumprelu":
        sae = CosineJumpReLUSAE(
            CosineJumpReLUSAEConfig(D_IN, D_SAE, exponent_mode=mode, **cfg)
        )
        sae.threshold.data.uniform_(0, 2)
    else:
        sae = CosineTopKSAE(
            CosineTopKSAEConfig(
                D_IN,
                D_SAE,
                k=K,
                exponent_mode=mode,
                rescale_acts_by_decoder_norm=True,
                **cfg,
            )
        )
    sae.W_enc.data.normal_().mul_(3)
    sae.W_dec.data.copy_(
        torch.nn.functional.normalize(torch.randn(D_SAE, D_IN), dim=1)
        * torch.logspace(-1, 1, D_SAE)[:, None]
    )
    sae.b_dec.data.normal_()
    sae.b_enc.data.normal_().mul_(0.3)
    if exponent is None:
        sae.exponent.data.uniform_(-0.3, 0.8)
    else:
        sae.exponent.data.fill_(exponent)
    return sae


CASES = [(name, mode) for name in ("jumprelu", "topk") for mode in EXPONENT_MODES]


@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_exponent_one_is_saelens_jumprelu(mode):
    sae = make("jumprelu", mode, exponent=1.0)
    reference = JumpReLUSAE(JumpReLUSAEConfig(D_IN, D_SAE))
    weights = sae.state_dict()
    weights.pop("exponent")
    reference.load_state_dict(weights)
    x = activations()
    assert torch.equal(sae.encode(x), reference.encode(x))
    assert torch.equal(sae(x), reference(x))


@pytest.mark.parametrize("mode", EXPONENT_MODES)
@pytest.mark.parametrize("rescale", [True, False])
def test_exponent_one_is_saelens_topk(mode, rescale):
    sae = make("topk", mode, exponent=1.0)
    sae.cfg.rescale_acts_by_decoder_norm = rescale
    reference = TopKSAE(
        TopKSAEConfig(D_IN, D_SAE, k=K, rescale_acts_by_decoder_norm=rescale)
    )
    weights = sae.state_dict()
    weights.pop("exponent")
    reference.load_state_dict(weights)
    x = activations()
    assert torch.equal(sae.encode(x), reference.encode(x))
    assert torch.equal(sae(x), reference(x))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_exponent_zero_selects_whatever_the_norm(name, mode, factor):
    sae = make(name, mode, exponent=0.0)
    sae.b_dec.data.zero_()
    x = activations()
    acts, scaled = sae.encode(x), sae.encode(factor * x)
    assert torch.equal(acts > 0, scaled > 0)
    torch.testing.assert_close(scaled, acts)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_rows_are_independent_of_batch_and_shape(name, mode):
    sae = make(name, mode)
    x = activations(12)
    acts, out = sae.encode(x), sae(x)
    torch.testing.assert_close(sae.encode(x.reshape(3, 4, -1)).flatten(0, 1), acts)
    torch.testing.assert_close(sae.encode(x[5]), acts[5])
    torch.testing.assert_close(sae(x[5]), out[5])


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_hook_z_heads_are_one_row(name, mode):
    sae = make(name, mode)
    x = activations(6)
    heads = make(name, mode, reshape_activations="hook_z")
    z = x.reshape(2, 3, 2, D_IN // 2)  # [batch, position, head, d_head]
    torch.testing.assert_close(heads.encode(z).flatten(0, 1), sae.encode(x))
    torch.testing.assert_close(heads(z).reshape(6, D_IN), sae(x))


@pytest.mark.parametrize("scaling_factor", [0.01, 3.0, 100.0])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_fold_of_the_activation_scale(name, mode, scaling_factor):
    sae = make(name, mode)
    x = activations() / scaling_factor
    acts, out = sae.encode(scaling_factor * x), sae(scaling_factor * x)
    sae.fold_activation_norm_scaling_factor(scaling_factor)
    # SAELens's TopK selects by decoder norms, which the fold divides.
    by_norm = scaling_factor if name == "topk" else 1
    torch.testing.assert_close(sae.encode(x) * by_norm, acts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sae(x) * scaling_factor, out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_fold_of_the_decoder_norm(name, mode):
    sae = make(name, mode)
    x = activations()
    acts, out = sae.encode(x), sae(x)
    for _ in range(2):
        sae.fold_W_dec_norm()
        torch.testing.assert_close(sae(x), out, rtol=1e-4, atol=1e-4)
        assert torch.equal(sae.encode(x) > 0, acts > 0)
        torch.testing.assert_close(
            sae.W_dec.norm(dim=1), torch.ones(D_SAE), rtol=1e-5, atol=0
        )


def test_fold_leaves_a_zero_decoder_row_alone():
    sae = make("jumprelu")
    sae.W_dec.data[4] = 0
    before = copy.deepcopy(sae.state_dict())
    sae.fold_W_dec_norm()
    sae.fold_W_dec_norm()
    assert torch.equal(sae.W_dec[4], torch.zeros(D_IN))
    assert torch.equal(sae.W_enc[:, 4], before["W_enc"][:, 4])
    assert sae.threshold[4] == before["threshold"][4]
    assert sae.b_enc[4] == before["b_enc"][4]


def test_topk_without_rescaling_refuses_the_fold():
    sae = make("topk")
    sae.cfg.rescale_acts_by_decoder_norm = False
    with pytest.raises(NotImplementedError, match="may change the topk activations"):
        sae.fold_W_dec_norm()


def test_whitening_is_refused():
    eye = torch.eye(D_IN)
    with pytest.raises(NotImplementedError, match="Whitening cannot be folded"):
        make("jumprelu").fold_activation_whitening(eye[0], eye, eye)


@pytest.mark.parametrize(("name", "mode"), CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scalars_stay_float32_when_the_weights_are_cast(name, mode, dtype):
    sae = make(name, mode)
    exponent = sae.exponent.detach().clone()
    sae.to(dtype)
    assert sae.W_enc.dtype == dtype
    assert torch.equal(sae.exponent, exponent)  # bits, so never rounded
    if name == "jumprelu":
        assert sae.threshold.dtype == torch.float32
    assert sae.encode(activations()).dtype == dtype
    sae.double()
    assert sae.exponent.dtype == torch.float64
    assert sae.encode(activations()).dtype == torch.float64


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_masked_zero_rows_stay_finite(name, mode):
    sae = make(name, mode)
    sae.b_dec.data.zero_()
    x = activations(4)
    x[2] = 0
    assert sae.encode(x).isfinite().all()


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_bad_rows_are_counted_and_located(name, mode):
    x = activations(6)
    x[2, 0], x[4, 1] = float("nan"), float("inf")
    with pytest.raises(ValueError, match=r"2 of 6 activation rows .* first at row 2"):
        make(name, mode).encode(x)


def test_a_wrong_width_names_both():
    with pytest.raises(ValueError, match=r"width 5 .* d_in=8"):
        make("jumprelu").encode(torch.ones(3, 5))


def test_error_term_returns_the_input():
    sae = make("jumprelu")
    with pytest.warns(DeprecationWarning, match="use_error_term"):
        sae.use_error_term = True
    x = activations()
    torch.testing.assert_close(sae(x), x)


def test_config_names_the_bad_value():
    with pytest.raises(ValueError, match=r"exponent_mode='both' .* 'per_feature'"):
        CosineJumpReLUSAEConfig(4, 8, exponent_mode="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'layer_norm' cannot be combined"):
        CosineJumpReLUSAEConfig(4, 8, normalize_activations="layer_norm")
    with pytest.raises(ValueError, match="k=9 must be above 0 and at most d_sae=8"):
        CosineTopKSAEConfig(4, 8, k=9)


@pytest.mark.parametrize("mode", EXPONENT_MODES)
def test_forward_decodes_few_active_latents_alone(mode):
    sae = make("jumprelu", mode)
    x = activations(40).reshape(2, 20, D_IN)
    # 10 of 2 x 20 x 24 scores stay, within the share of 1/16 that is decoded sparsely
    highest = sae.score(x).flatten().sort(descending=True).values
    sae.threshold.data.fill_(highest[10])
    acts = sae.encode(x)
    assert acts.count_nonzero() == 10
    torch.testing.assert_close(sae(x), sae.decode(acts))
    gradients = []
    for x_hat in (sae(x), sae.decode(sae.encode(x))):
        sae.zero_grad()
        x_hat.square().sum().backward()
        gradients.append({n: p.grad for n, p in sae.named_parameters()})
    gradients[0]["threshold"] = None  # constant either way: a zero, or nothing
    gradients[1]["threshold"] = None
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="16"):
        sae(x.reshape(20, 2 * D_IN))


def test_forward_shows_dense_activations_to_hooks():
    sae = make("jumprelu")
    sae.threshold.data.fill_(1e6)
    seen = []
    sae.hook_sae_acts_post.add_hook(lambda acts, hook: seen.append(acts))  # noqa: ARG005
    sae(activations())
    assert seen[0].shape == (64, D_SAE)


@pytest.mark.parametrize("name", ["jumprelu", "topk"])
def test_no_rows_give_no_rows(name):
    assert make(name)(torch.zeros(0, D_IN)).shape == (0, D_IN)
