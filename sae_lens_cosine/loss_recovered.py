"""What an SAE's reconstruction costs the language model it is spliced into."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from sae_lens import SAE
from transformer_lens import HookedTransformer

from sae_lens_cosine.evaluation import reconstruct, refuse_batch_dependent
from sae_lens_cosine.validation import check_activations

_NOTHING = torch.zeros(2, dtype=torch.float64)
"""Sums of cross-entropy and of divergence, before the first batch."""


class LossRecovered(BaseModel):
    """Cross-entropy in nats per predicted token, and the share of it recovered.

    ``recovered = (ablated - spliced) / (ablated - clean)``: SAELens's and SAEBench's
    definition, with the activation set to zero as the ablation. Likewise for the
    divergence KL(clean || spliced) of the model's predictions, in nats per token,
    whose clean value is 0.
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
    kl_ablated: float
    kl_spliced: float
    kl_spliced_sinks_kept: float
    kl_recovered: float | None
    kl_recovered_sinks_kept: float | None


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
    """Loss with each SAE's reconstruction in place of the activation.

    The clean and the ablated loss are computed once for all SAEs. A HookedTransformer
    runs the layers below the hook once per batch. Cross-entropy and divergence come
    from the same forward pass; the clean predictions of a batch are kept meanwhile
    (4 bytes x tokens of the batch x vocabulary).

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
    clean = ablated = _NOTHING
    n_sinks = 0
    plain, kept = dict.fromkeys(saes, _NOTHING), dict.fromkeys(saes, _NOTHING)

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

        clean = clean + forward.clean_loss
        ablated = ablated + forward.loss_with(put(torch.zeros_like(rows)))
        n_sinks += int(sinks.sum())
        for name, sae in saes.items():
            check_activations(rows, sae.cfg.d_in)
            x_hat = reconstruct(sae, rows)[1].to(rows)
            loss = forward.loss_with(put(x_hat))
            plain[name] = plain[name] + loss
            if sinks.any():
                loss = forward.loss_with(put(rows.where(sinks[:, None], x_hat)))
            kept[name] = kept[name] + loss
        if on_batch is not None:
            on_batch(len(batch))

    # The last token of a context predicts, but nothing follows that it could miss.
    per = torch.tensor([len(tokens) * (tokens.shape[1] - 1), tokens.numel()])
    return {
        name: LossRecovered(
            n_predictions=int(per[0]),
            n_sinks=n_sinks,
            **_columns(clean / per, ablated / per, plain[name] / per, kept[name] / per),
        )
        for name in saes
    }


def _columns(
    clean: torch.Tensor, ablated: torch.Tensor, plain: torch.Tensor, kept: torch.Tensor
) -> dict[str, Any]:
    """Fields of the result from pairs of cross-entropy and divergence."""
    gap = ablated - clean
    columns: dict[str, Any] = {"clean": clean[0].item()}
    for i, prefix in enumerate(("", "kl_")):
        columns |= {
            f"{prefix}ablated": ablated[i].item(),
            f"{prefix}spliced": plain[i].item(),
            f"{prefix}spliced_sinks_kept": kept[i].item(),
        }
        for suffix, loss in (("", plain), ("_sinks_kept", kept)):
            share = ((ablated - loss) / gap)[i].item() if gap[i] else None
            columns[f"{prefix}recovered{suffix}"] = share
    return columns


class _Forward:
    """One batch through the model: clean, then with other activations at the hook."""

    def __init__(self, model: Any, hook_name: str, tokens: torch.Tensor) -> None:
        self.model, self.hook_name, self.tokens = model, hook_name, tokens
        self.kwargs: dict[str, Any] = {"return_type": "both", "loss_per_token": True}
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
        logits, clean_loss = self._run(tokens, hooks)
        self.clean = logits.float().log_softmax(-1)
        self.clean_loss = torch.tensor([clean_loss, 0.0], dtype=torch.float64)
        if hook_name not in seen:
            raise ValueError(f"The hook {hook_name!r} did not fire: check its name.")
        self.activation = seen[hook_name]
        self.input = tokens
        if start is not None:
            self.input = seen[below]
            self.kwargs |= {"start_at_layer": start, "tokens": tokens}

    def loss_with(self, activation: torch.Tensor) -> torch.Tensor:
        """Summed cross-entropy and divergence with ``activation`` at the hook."""
        replace: Any = lambda _, hook: activation  # noqa: ARG005, E731
        logits, loss = self._run(self.input, [(self.hook_name, replace)])
        # One context at a time: the vocabulary is the largest dimension there is.
        divergence = sum(
            F.kl_div(
                new.float().log_softmax(-1), clean, log_target=True, reduction="none"
            )
            .sum(-1)
            .double()
            .sum()
            .item()
            for new, clean in zip(logits, self.clean, strict=True)
        )
        return torch.tensor([loss, divergence], dtype=torch.float64)

    def _run(
        self, model_input: torch.Tensor, hooks: list[tuple[str, Any]]
    ) -> tuple[torch.Tensor, float]:
        """Logits ``[batch, ctx, vocabulary]`` and the summed cross-entropy."""
        logits, loss = self.model.run_with_hooks(
            model_input, fwd_hooks=hooks, **self.kwargs
        )
        return logits, loss.double().sum().item()
