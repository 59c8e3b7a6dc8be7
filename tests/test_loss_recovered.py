"""Cross-entropy recovered, against SAELens's own evaluator."""

import json
from typing import Any

import pytest
import torch
from helpers import linear_sae
from sae_lens import (
    SAE,
    BatchTopKTrainingSAE,
    BatchTopKTrainingSAEConfig,
)
from sae_lens.evals import get_recons_loss
from sae_lens.training.activation_scaler import ActivationScaler
from transformer_lens import HookedTransformer, HookedTransformerConfig

from sae_lens_cosine.loss_recovered import LossRecovered, cross_entropy_recovered

HOOKS = [
    "blocks.0.hook_resid_post",
    "blocks.1.hook_resid_pre",
    "blocks.1.hook_mlp_out",
    "blocks.1.attn.hook_z",
    "hook_embed",
]
TOKENS = torch.arange(30).reshape(5, 6) % 11


@pytest.fixture(scope="module")
def model() -> HookedTransformer:
    cfg = HookedTransformerConfig(
        n_layers=2,
        d_model=8,
        n_ctx=6,
        d_head=4,
        n_heads=2,
        d_vocab=11,
        act_fn="gelu",
        seed=0,
        init_weights=True,
        initializer_range=0.5,
    )
    return HookedTransformer(cfg)


def recover(
    model: HookedTransformer, sae: SAE[Any], hook: str, limit: float = 1e6, **kw: Any
) -> LossRecovered:
    return cross_entropy_recovered(
        model, {"arm": sae}, hook, TOKENS, sink_norm_limit=limit, batch_size=2, **kw
    )["arm"]


@pytest.mark.parametrize("hook", HOOKS)
def test_identity_recovers_everything(model: HookedTransformer, hook: str):
    loss = recover(model, linear_sae(8, dtype="float32"), hook)
    assert loss.recovered == 1.0
    assert loss.recovered_sinks_kept == 1.0
    assert loss.spliced == loss.clean
    assert loss.kl_spliced == loss.kl_spliced_sinks_kept == 0.0
    assert loss.kl_recovered == loss.kl_recovered_sinks_kept == 1.0
    assert loss.n_predictions == 5 * 5  # six tokens predict five
    assert loss.n_sinks == 0


@pytest.mark.parametrize("hook", HOOKS)
def test_a_zero_sae_is_the_ablation(model: HookedTransformer, hook: str):
    loss = recover(model, linear_sae(8, scale=0.0, dtype="float32"), hook)
    assert loss.recovered == 0.0
    assert loss.spliced == loss.ablated
    assert loss.kl_recovered == 0.0
    assert loss.kl_ablated > 0


@pytest.mark.parametrize("hook", HOOKS)
def test_losses_equal_saelens_own(model: HookedTransformer, hook: str):
    """The oracle: SAELens's evaluator, which runs the whole model each time."""
    sae = linear_sae(8, scale=0.7, dtype="float32")
    losses = get_recons_loss(
        sae,
        model,
        ActivationScaler(),
        TOKENS,
        compute_kl=True,
        compute_ce_loss=True,
        hook_name=hook,
    )
    clean, ablated, spliced = (
        losses[f"ce_loss_{name}"].mean().item()
        for name in ("without_sae", "with_ablation", "with_sae")
    )
    loss = recover(model, sae, hook)
    assert loss.clean == pytest.approx(clean)
    assert loss.ablated == pytest.approx(ablated)
    assert loss.spliced == pytest.approx(spliced)
    assert loss.spliced_sinks_kept == loss.spliced
    expected = (ablated - spliced) / (ablated - clean)
    assert loss.recovered == pytest.approx(expected, rel=1e-4)
    ablated, spliced = (
        losses[f"kl_div_with_{name}"].mean().item() for name in ("ablation", "sae")
    )
    assert loss.kl_ablated == pytest.approx(ablated, rel=1e-4)
    assert loss.kl_spliced == pytest.approx(spliced, rel=1e-4)
    assert loss.kl_recovered == pytest.approx(1 - spliced / ablated, rel=1e-4)


def test_sinks_are_kept_as_they_are(model: HookedTransformer):
    hook = "blocks.0.hook_resid_post"
    _, cache = model.run_with_cache(TOKENS)
    norms = cache[hook].norm(dim=-1)
    limit = norms.quantile(0.5).item()  # between two of the 30 norms
    loss = recover(model, linear_sae(8, scale=0.0, dtype="float32"), hook, limit)

    def keep_long(x: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
        return x * (norms > limit)[..., None]

    expected = model.run_with_hooks(
        TOKENS, return_type="loss", fwd_hooks=[(hook, keep_long)]
    ).item()
    assert loss.n_sinks == int((norms > limit).sum())
    assert loss.spliced_sinks_kept == pytest.approx(expected)
    assert loss.spliced == loss.ablated
    assert 0 < loss.kl_spliced_sinks_kept < loss.kl_spliced == loss.kl_ablated


def test_one_head(model: HookedTransformer):
    hook = "blocks.1.attn.hook_z"
    sae = linear_sae(4, scale=0.0, dtype="float32")

    def drop_second_head(z: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
        return z * torch.tensor([1.0, 0.0])[:, None]

    expected = model.run_with_hooks(
        TOKENS, return_type="loss", fwd_hooks=[(hook, drop_second_head)]
    ).item()
    assert recover(model, sae, hook, head_index=1).ablated == pytest.approx(expected)
    identity = linear_sae(4, dtype="float32")
    assert recover(model, identity, hook, head_index=1).recovered == 1.0


def test_arms_share_the_clean_and_the_ablated_loss(model: HookedTransformer):
    passes: list[int] = []
    handle = model.unembed.register_forward_hook(lambda *_: passes.append(1))
    seen: list[int] = []
    losses = cross_entropy_recovered(
        model,
        {str(s): linear_sae(8, scale=s, dtype="float32") for s in (0.0, 0.5, 1.0)},
        "blocks.0.hook_resid_post",
        TOKENS,
        sink_norm_limit=1e6,
        batch_size=5,
        on_batch=seen.append,
    )
    handle.remove()
    assert len(passes) == 1 + 1 + 3  # no token is a sink: no second pass per arm
    assert seen == [5]
    assert [losses["0.0"].recovered, losses["1.0"].recovered] == [0.0, 1.0]
    assert len({loss.clean for loss in losses.values()}) == 1
    json.dumps(losses["0.5"].model_dump(), allow_nan=False)


def test_left_padding_tokenizer_does_not_mask_real_tokens(model: HookedTransformer):
    """Token 0 starts a sequence here; a tokenizer may use its id for padding."""

    class Tokenizer:
        padding_side, pad_token_id, bos_token_id = "left", 0, 5

    clean = recover(model, linear_sae(8, dtype="float32"), HOOKS[0]).clean
    model.tokenizer = Tokenizer()  # type: ignore[assignment]
    try:
        loss = recover(model, linear_sae(8, dtype="float32"), HOOKS[0])
    finally:
        model.tokenizer = None
    assert loss.clean == clean
    assert loss.recovered == 1.0


def test_the_model_and_the_sae_are_left_as_they_were(model: HookedTransformer):
    sae = linear_sae(8, dtype="float32")
    before = {k: v.clone() for k, v in sae.state_dict().items()}
    recover(model, sae, HOOKS[0])
    assert all(not point.fwd_hooks for point in model.hook_points())
    assert all(torch.equal(v, before[k]) for k, v in sae.state_dict().items())
    assert torch.is_grad_enabled()


def test_unusable_tokens_and_saes_are_refused(model: HookedTransformer):
    sae = linear_sae(8, dtype="float32")
    for tokens in (TOKENS[0], TOKENS[:, :1], TOKENS[:0]):
        with pytest.raises(ValueError, match=r"\[n, ctx\]"):
            cross_entropy_recovered(
                model, {"arm": sae}, HOOKS[0], tokens, sink_norm_limit=1.0
            )
    with pytest.raises(ValueError, match="width 8"):
        recover(model, linear_sae(4, dtype="float32"), HOOKS[0])
    with pytest.raises(ValueError, match="did not fire"):
        recover(model, sae, "blocks.1.attn.hook_result")
    training = BatchTopKTrainingSAE(BatchTopKTrainingSAEConfig(d_in=8, d_sae=16, k=2))
    with pytest.raises(TypeError, match="selects over a whole batch"):
        recover(model, training, HOOKS[0])
