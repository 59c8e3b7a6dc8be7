"""Which SAEs are functions of one token: tried on everything SAELens knows."""

from typing import Any

import pytest
import torch
from helpers import D_IN, D_SAE, K, training_sae
from sae_lens import SAE, SAEConfig, StandardSAE, StandardSAEConfig
from sae_lens.registry import SAE_CLASS_REGISTRY
from sae_lens.saes.transcoder import Transcoder

from sae_lens_cosine.token_wise import check_reconstructs_input, check_token_wise

TRANSCODER = {"d_out": D_IN, "apply_b_dec_to_input": False}
# Temporal attention needs d_sae a multiple of heads x bottleneck factor: 2 x 4.
NEEDS: dict[str, dict[str, Any]] = {
    "topk": {"k": K},
    "abstopk": {"k": K},
    "cosine_topk": {"k": K},
    "cosine_abstopk": {"k": K},
    "transcoder": TRANSCODER,
    "skip_transcoder": TRANSCODER,
    "jumprelu_transcoder": TRANSCODER,
    "jumprelu_skip_transcoder": TRANSCODER,
    "temporal": {"n_heads": 2, "bottleneck_factor": 4, "kval_topk": K},
}


def inference_sae(architecture: str, **cfg: Any) -> SAE[Any]:
    torch.manual_seed(0)
    fields = {"architecture": architecture, "d_in": D_IN, "d_sae": D_SAE}
    config = SAEConfig.from_dict(fields | NEEDS.get(architecture, {}) | cfg)
    config.metadata.hook_name = "blocks.0.attn.hook_z"
    sae = SAE.from_dict(config.to_dict())
    with torch.no_grad():
        sae.W_dec.div_(sae.W_dec.norm(dim=-1, keepdim=True))
    return sae


def architectures() -> list[str]:
    """Every name that opens as an inference SAE (ours for training refuse that)."""
    names = []
    for name in SAE_CLASS_REGISTRY:
        try:
            inference_sae(name)
        except (TypeError, ValueError):
            continue
        names.append(name)
    return names


def test_architectures_are_found():
    assert {*NEEDS, "standard", "gated", "jumprelu", "matching_pursuit"} <= set(
        architectures()
    )
    assert "cosine_jumprelu" in architectures()


@pytest.mark.parametrize("architecture", architectures())
def test_every_architecture_is_accepted_or_depends_on_other_tokens(architecture: str):
    sae = inference_sae(architecture)
    rows = torch.randn(1, 5, D_IN)
    alone = [sae.encode(rows[:, i : i + 1]) for i in range(5)]
    same = torch.allclose(sae.encode(rows), torch.cat(alone, dim=1), atol=1e-5)
    assert same == (architecture != "temporal")
    if same:
        check_token_wise("x", sae)
    else:
        with pytest.raises(TypeError, match=r"'x' is a TemporalSAE.*run_eval"):
            check_token_wise("x", sae)


def test_an_sae_that_selects_over_the_batch_is_found():
    with pytest.raises(TypeError, match="depend on the other tokens"):
        check_token_wise("x", training_sae("batchtopk"))


def test_an_sae_that_needs_other_inputs_is_named():
    class NeedsPositions(StandardSAE):
        def encode(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().encode(x + positions)

    sae = NeedsPositions(StandardSAEConfig(d_in=D_IN, d_sae=D_SAE))
    with pytest.raises(TypeError, match=r"NeedsPositions.*missing 1 required"):
        check_token_wise("x", sae)


def test_hook_z_sae_is_accepted_and_left_as_it_was():
    sae = inference_sae("standard", reshape_activations="hook_z")
    check_token_wise("x", sae)
    assert sae.hook_z_reshaping_mode


@pytest.mark.parametrize("architecture", architectures())
def test_only_transcoders_do_not_reconstruct_their_input(architecture: str):
    sae = inference_sae(architecture)
    if not isinstance(sae, Transcoder):
        check_reconstructs_input("x", sae)
        sae.cfg.metadata.hook_name_out = "blocks.0.hook_mlp_out"
    with pytest.raises(TypeError, match="output is not meant to be its input"):
        check_reconstructs_input("x", sae)
