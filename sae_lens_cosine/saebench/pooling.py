"""Mean latents of every prompt, by SAEBench's own pooling, in bounded memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sae_bench.sae_bench_utils import activation_collection

from sae_lens_cosine.saebench.activations import PromptActivations
from sae_lens_cosine.saebench.sinks import MaskedPrompts


class Lookup:
    """Stands where SAEBench expects an SAE and returns rows computed before."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.dtype = rows.dtype

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """``[batch, 1, 1]`` numbers, counted from 1, to ``[batch, 1, width]``."""
        return self.rows[numbers[..., 0] - 1]


class _Encoded:
    """Stands where SAEBench expects an SAE: its latents of one batch, encoded before."""

    def __init__(self, latents: torch.Tensor, dtype: torch.dtype) -> None:
        self.latents = latents
        self.dtype = dtype

    def encode(self, _: torch.Tensor) -> torch.Tensor:
        return self.latents


class ChannelsAsLatents:
    """Stands where SAEBench expects an SAE and returns the model's own channels.

    Probing it is SAEBench's LLM baseline, run by the same code as every SAE.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x


@torch.no_grad()
def mean_latents(
    sae: Any,
    acts: PromptActivations,
    masks: Sequence[MaskedPrompts],
    *,
    batch_size: int,
    device: torch.device,
    left_out: Sequence[int] = (),
    on_batch: Callable[[int], object] = lambda _: None,
) -> list[torch.Tensor]:
    """Latents of each prompt, averaged over the tokens that a mask keeps.

    Every batch is encoded once, whatever the number of masks. No more than
    ``batch_size`` prompts' latents exist at a time.

    Args:
        sae: has ``encode`` and ``dtype``.
        acts: activations of the prompts.
        masks: ways of masking.
        batch_size: prompts encoded at once.
        device: where the SAE is.
        left_out: latents that the result does not contain.
        on_batch: called with the number of prompts after each batch.

    Returns:
        For each mask ``[prompts, latents]``, on the CPU. Prompts without a token are
        NaN.
    """
    pooled: list[torch.Tensor] = []
    candidates: torch.Tensor | None = None
    for prompts in acts.batches(batch_size):
        batch = acts.padded(prompts, acts.acts).to(device)
        latents = sae.encode(batch)
        if candidates is None:
            chosen = torch.ones(latents.shape[-1], dtype=torch.bool)
            chosen[list(left_out)] = False
            candidates = chosen.nonzero()[:, 0]
            shape = len(acts.real), len(candidates)
            pooled = [torch.empty(shape, dtype=sae.dtype) for _ in masks]
        encoded = _Encoded(latents, sae.dtype)
        for mask, out in zip(masks, pooled, strict=True):
            keep = acts.padded(prompts, mask.keep).to(device)
            masked = {"": batch * keep[..., None]}
            means = activation_collection.get_sae_meaned_activations(
                masked, encoded, len(prompts)
            )[""].cpu()
            out[prompts] = means[:, candidates] if len(left_out) else means
        on_batch(len(prompts))
    return pooled
