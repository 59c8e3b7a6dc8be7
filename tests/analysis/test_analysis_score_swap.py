"""Reading one SAE's weights with another score."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import D_IN, D_SAE, activations, linear_sae, train, training_sae
from sae_lens import SAE, JumpReLUSAE, JumpReLUSAEConfig

from sae_lens_cosine.analysis import swap_score
from sae_lens_cosine.score import cosine_score


def trained(path: Path, **cfg: Any) -> SAE[Any]:
    sae = train(training_sae(**cfg), n_steps=20)
    sae.save_inference_model(path)
    return SAE.load_from_disk(path)


def jumprelu() -> JumpReLUSAE:
    torch.manual_seed(0)
    sae = JumpReLUSAE(JumpReLUSAEConfig(d_in=D_IN, d_sae=D_SAE))
    sae.W_enc.data = torch.randn(D_IN, D_SAE)
    sae.b_enc.data = 0.1 * torch.randn(D_SAE)
    sae.threshold.data = torch.full((D_SAE,), 20.0)
    return sae


def l0(sae: SAE[Any], x: torch.Tensor) -> float:
    return (sae.encode(x) != 0).sum(-1).double().mean().item()


@pytest.mark.parametrize("mode", ["global", "per_feature"])
def test_same_l0_and_the_same_scores_at_the_typical_norm(tmp_path: Path, mode: str):
    sae = trained(tmp_path, exponent_mode=mode)
    x = activations(401, seed=9)  # an odd number, of which one has the median norm
    before = {key: value.clone() for key, value in sae.state_dict().items()}
    swapped = swap_score(sae, x, 1.0)
    assert l0(swapped, x) == pytest.approx(l0(sae, x), abs=1 / len(x))
    assert swapped.exponent.item() == 1.0
    assert torch.equal(swapped.W_dec, sae.W_dec)
    norms = (x - sae.b_dec).norm(dim=1)
    typical = x[norms == norms.median()]
    torch.testing.assert_close(swapped.score(typical), sae.score(typical))
    # left as it was, and nothing shared
    swapped.b_dec.data += 1
    assert all(torch.equal(v, before[k]) for k, v in sae.state_dict().items())


def test_an_inner_product_sae_becomes_a_cosine():
    sae = jumprelu()
    x = activations(401)
    swapped = swap_score(sae, x, 0.0)
    norms = x.norm(dim=1, keepdim=True)
    scale = norms.median()
    # n_0^1 n^-1 <x, w>
    torch.testing.assert_close(
        swapped.score(x), scale / norms * (x @ sae.W_enc) + sae.b_enc
    )
    assert l0(swapped, x) == pytest.approx(l0(sae, x), abs=1 / len(x))
    assert l0(sae, x) > 0
    # a token ten times as long scores as it did
    torch.testing.assert_close(swapped.score(10 * x), swapped.score(x))


def test_the_own_exponent_gives_the_same_sae():
    sae = jumprelu()
    x = activations(300)
    same = swap_score(sae, x, 1.0)
    torch.testing.assert_close(same.encode(x), sae.encode(x))


def test_thresholds_of_their_own_keep_their_proportions():
    sae = jumprelu()
    sae.threshold.data = torch.linspace(10, 40, D_SAE)
    x = activations(300)
    swapped = swap_score(sae, x, 0.0)
    factor = swapped.threshold / sae.threshold
    torch.testing.assert_close(factor, factor[:1].expand(D_SAE))
    assert l0(swapped, x) == pytest.approx(l0(sae, x), abs=2 / len(x))
    expected = cosine_score(
        x, sae.W_enc * x.norm(dim=1).median(), torch.zeros(()), sae.b_enc
    )
    torch.testing.assert_close(swapped.score(x), expected)


def test_sink_latents_stay_as_they_are(tmp_path: Path):
    sae = trained(tmp_path, sink_rank=2)
    sae.sink_directions[0, 0] = 1.0
    sae.sink_limit.fill_(1e4)
    sae.threshold.data[-2:] = 0.0
    sae.W_dec.data[-2:] = torch.eye(2, D_IN)
    sae.W_enc.data[:, -2:] = torch.eye(D_IN, 2)
    x = activations(300)
    x[0] = 0
    x[0, 0] = 1e6  # a sink
    swapped = swap_score(sae, x, 1.0)
    assert swapped.sink_latents == [D_SAE - 2, D_SAE - 1]
    assert torch.equal(swapped.encode(x[:1])[:, -2:], sae.encode(x[:1])[:, -2:])
    assert swapped.encode(x[:1])[0, -2] > 1e5


def test_what_cannot_be_swapped_is_refused():
    x = activations(10)
    with pytest.raises(TypeError, match="StandardSAE has no threshold"):
        swap_score(linear_sae(D_IN), x, 0.0)
    sae = jumprelu()
    with pytest.raises(ValueError, match=r"give rows, \[n, d_in\]"):
        swap_score(sae, x[0], 0.0)
    sae.threshold.data[:3] = 0
    with pytest.raises(ValueError, match="3 of 24 thresholds are 0"):
        swap_score(sae, x, 0.0)
    sae.threshold.data.fill_(1e9)
    with pytest.raises(ValueError, match="No latent is active"):
        swap_score(sae, x, 0.0)
