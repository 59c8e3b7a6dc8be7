"""The activations of an SAE as a stream of its firings, in bounded memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sae_lens import SAE

from sae_lens_cosine.evaluation import encode, refuse_batch_dependent
from sae_lens_cosine.validation import check_activations

_CELLS = 2**24
"""Activations that are dense at a time: 64 MiB in float32, at any d_sae."""


@dataclass(frozen=True)
class Firings:
    """What fired on ``n_tokens`` tokens that follow each other; on the CPU."""

    norms: torch.Tensor
    """``[n_tokens]``, float64: uncentred norms."""
    token: torch.Tensor
    """``[firings]``: number of the token, from 0, in ascending order."""
    latent: torch.Tensor
    """``[firings]``: which latent was not zero."""
    value: torch.Tensor
    """``[firings]``, float64: its activation (negative ones are possible)."""

    @property
    def n_tokens(self) -> int:
        return len(self.norms)


def small_batches(
    batches: Iterable[torch.Tensor], *saes: SAE[Any]
) -> Iterator[torch.Tensor]:
    """The same tokens in pieces whose dense activations fit, checked.

    Raises:
        TypeError: for a BatchTopK *training* SAE, which selects over a whole batch.
        ValueError: if there are no activations, or NaN, or another width than d_in.
    """
    for sae in saes:
        refuse_batch_dependent(sae)
    rows = max(1, _CELLS // max(sae.cfg.d_sae for sae in saes))
    is_empty = True
    for batch in batches:
        for sae in saes:
            check_activations(batch, sae.cfg.d_in)
        is_empty = is_empty and not len(batch)
        yield from batch.split(rows)
    if is_empty:
        raise ValueError(
            "There are no activations to analyse: is `batches` a generator that an "
            "earlier call has used up?"
        )


def firings(sae: SAE[Any], rows: torch.Tensor) -> Firings:
    """What fires on the rows ``[n, d_in]`` of a small batch."""
    acts = encode(sae, rows)
    token, latent = acts.nonzero(as_tuple=True)
    return Firings(
        norms=rows.cpu().double().norm(dim=-1),
        token=token.cpu(),
        latent=latent.cpu(),
        value=acts[token, latent].cpu().double(),
    )


def ordinary_latents(sae: SAE[Any]) -> list[int]:
    """All latents but those that the SAE reserves for attention sinks."""
    reserved = set(reserved_latents(sae))
    return [latent for latent in range(sae.cfg.d_sae) if latent not in reserved]


def reserved_latents(sae: SAE[Any]) -> list[int]:
    """Latents that the SAE reserves for attention sinks; most SAEs have none."""
    return [int(latent) for latent in getattr(sae, "sink_latents", ())]
