"""What an SAE's reconstruction costs the language model it is spliced into."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from sae_lens import SAE
from transformer_lens import HookedTransformer

from sae_lens_cosine.evaluation import reconstruct, refuse_batch_dependent
from sae_lens_cosine.validation import check_activations


class LossRecovered(BaseModel):
    """Cross-entropy in nats per predicted token, and the share of it recovered.

    ``recovered = (ablated - spliced) / (ablated - clean)``: SAELens's and SAEBench's
    definition, with the activation set to zero as the ablation.
    """

    model_config = ConfigDict(frozen=True)

    n_predictions: int
    n_sinks: int
    """Tokens beyond the norm limit, which ``*_sinks_kept`` passes through unchanged."""
    clean: float
    ablated: float
    spliced: float
    spliced_sinks_kept: float
    recovered: float | None
    recovered_sinks_kept: float | None


@torch.no_grad()
def cross_entropy_recovered(
    model: Any,
    saes: Mapping[str, SAE[Any]],
    hook_name: str,
    tokens: torch.Tensor,
    *,
    sink_norm_limit: float,
    batch_size: int = 8,
    head_index: int | None = None,
    on_batch: Callable[[int], object] | None = None,
) -> dict[str, LossRecovered]:
    """Cross-entropy with each SAE's reconstruction in place of the activation.

    The clean and the ablated loss are computed once for all SAEs. A HookedTransformer
    runs the layers below the hook once per batch.

    Args:
        model: a HookedTransformer, or a TransformerBridge.
        saes: SAEs by name, all for ``hook_name``.
        hook_name: for example ``blocks.15.hook_resid_post``. Activations with a head
            dimension are flattened, unless ``head_index`` picks one head.
        tokens: ``[n, ctx]`` token ids without padding, ``ctx >= 2``.
        sink_norm_limit: "sinks kept" leaves activations with a norm above it as they
            are, for every SAE alike.
        batch_size: sequences per forward pass.
        on_batch: called with the number of sequences after each batch, for a
            progress bar.

    Raises:
        TypeError: for a BatchTopK *training* SAE.
        ValueError: if tokens, width or reconstruction do not fit.
    """
    for sae in saes.values():
        refuse_batch_dependent(sae)
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise ValueError(
            f"tokens must be [n, ctx] with n >= 1 and ctx >= 2, not {tuple(tokens.shape)}."
        )
    clean = ablated = 0.0
    n_sinks = 0
    plain, kept = dict.fromkeys(saes, 0.0), dict.fromkeys(saes, 0.0)

    for batch in tokens.split(batch_size):
        forward = _Forward(model, hook_name, batch)
        x = forward.activation
        pick = x if head_index is None else x[:, :, head_index]
        rows = pick.reshape(batch.numel(), -1)
        sinks = rows.double().norm(dim=-1) > sink_norm_limit

        def put(new: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
            if head_index is None:
                return new.to(x).reshape(x.shape)
            x = x.clone()
            x[:, :, head_index] = new.to(x).reshape(x.shape[0], x.shape[1], -1)
            return x

        clean += forward.clean_loss
        ablated += forward.loss_with(put(torch.zeros_like(rows)))
        n_sinks += int(sinks.sum())
        for name, sae in saes.items():
            check_activations(rows, sae.cfg.d_in)
            x_hat = reconstruct(sae, rows)[1].to(rows)
            loss = forward.loss_with(put(x_hat))
            plain[name] += loss
            if sinks.any():
                loss = forward.loss_with(put(rows.where(sinks[:, None], x_hat)))
            kept[name] += loss
        if on_batch is not None:
            on_batch(len(batch))

    n = tokens.shape[0] * (tokens.shape[1] - 1)
    gap = ablated - clean
    return {
        name: LossRecovered(
            n_predictions=n,
            n_sinks=n_sinks,
            clean=clean / n,
            ablated=ablated / n,
            spliced=plain[name] / n,
            spliced_sinks_kept=kept[name] / n,
            recovered=(ablated - plain[name]) / gap if gap else None,
            recovered_sinks_kept=(ablated - kept[name]) / gap if gap else None,
        )
        for name in saes
    }


class _Forward:
    """One batch through the model: clean, then with other activations at the hook."""

    def __init__(self, model: Any, hook_name: str, tokens: torch.Tensor) -> None:
        self.model, self.hook_name, self.tokens = model, hook_name, tokens
        self.kwargs: dict[str, Any] = {"return_type": "loss", "loss_per_token": True}
        start = None
        if isinstance(model, HookedTransformer):
            # Without an explicit mask a left-padding tokenizer would mask real tokens
            # that share the padding's id, and only in passes that start at the bottom.
            self.kwargs["attention_mask"] = torch.ones_like(tokens)
            block = re.match(r"blocks\.(\d+)\.", hook_name)
            # Shortformer's position embedding goes round the residual stream.
            if block and model.cfg.positional_embedding_type != "shortformer":
                start = int(block[1])
        below = hook_name if start is None else f"blocks.{start}.hook_resid_pre"
        seen: dict[str, torch.Tensor] = {}

        # By the name asked for: a TransformerBridge's hook may have another of its own.
        def keep(x: torch.Tensor, hook: Any, name: str) -> None:  # noqa: ARG001
            seen[name] = x

        hooks = [(name, partial(keep, name=name)) for name in {below, hook_name}]
        self.clean_loss = self._loss(tokens, hooks)
        if hook_name not in seen:
            raise ValueError(f"The hook {hook_name!r} did not fire: check its name.")
        self.activation = seen[hook_name]
        self.input = tokens
        if start is not None:
            self.input = seen[below]
            self.kwargs |= {"start_at_layer": start, "tokens": tokens}

    def loss_with(self, activation: torch.Tensor) -> float:
        """Summed loss with ``activation`` at the hook."""
        replace: Any = lambda _, hook: activation  # noqa: ARG005, E731
        return self._loss(self.input, [(self.hook_name, replace)])

    def _loss(self, model_input: torch.Tensor, hooks: list[tuple[str, Any]]) -> float:
        loss = self.model.run_with_hooks(model_input, fwd_hooks=hooks, **self.kwargs)
        return loss.double().sum().item()
