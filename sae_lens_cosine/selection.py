"""Which latents of a training batch stay active: selectors that name their entries.

SAELens's selectors return dense activations. These say which entries of
``hidden_pre`` they keep, so that a training step can leave the others alone, and the
dense activations follow from the same choice.
"""

import torch
from sae_lens.saes.topk_sae import TopK
from torch import nn
from typing_extensions import override

# Scores move little from one batch to the next; a batch that falls short of the
# cutoff is selected from anew.
_CUTOFF_SHARE = 0.8


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the ``k`` largest of ``values``, ``[m]``, in ascending order.

    Of equal values at the cut the first ones are taken; all indices if ``m <= k``.
    """
    if len(values) <= k:
        return torch.arange(len(values), device=values.device)
    smallest = values.topk(k, sorted=False).values.min()
    keep = values > smallest
    ties = (values == smallest).nonzero().squeeze(1)
    keep[ties[: k - int(keep.sum())]] = True
    return keep.nonzero().squeeze(1)


class BatchTopK(nn.Module):
    """Keeps the largest positive scores of a batch, ``k`` a row on average.

    Of equal scores at the cut, those of earlier rows and then of earlier latents are
    kept. Only scores above a cutoff are ranked, a share of the smallest one that the
    last batch kept. Where they are too few all positive ones are, so the cutoff never
    changes what is kept.
    """

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k
        self.cutoff = 0.0

    @torch.no_grad()
    def select(self, hidden_pre: torch.Tensor) -> torch.Tensor:
        """Flat indices, ascending, of what is kept of ``hidden_pre``, ``[..., d_sae]``.

        Raises:
            ValueError: if ``k`` a row comes to less than one score.
        """
        n_rows = hidden_pre.shape[:-1].numel()
        n_kept = int(self.k * n_rows)
        if n_kept < 1:
            raise ValueError(
                f"k={self.k} over a batch of {n_rows} rows selects nothing: raise k, "
                "or use larger batches."
            )
        flat = hidden_pre.flatten()
        candidates = (flat > self.cutoff).nonzero().squeeze(1)
        if len(candidates) < n_kept and self.cutoff > 0:
            candidates = (flat > 0).nonzero().squeeze(1)
        values = flat[candidates]
        kept = largest(values, n_kept)
        is_full = len(kept) == n_kept
        self.cutoff = _CUTOFF_SHARE * float(values[kept].min()) if is_full else 0.0
        return candidates[kept]

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Dense activations, ``[..., d_sae]`` like ``x``."""
        return _dense(x, self.select(x))


class TokenTopK(TopK):
    """SAELens's TopK, equal scores broken as `torch.topk` does; dense when called."""

    def __init__(self, k: int) -> None:
        super().__init__(k, use_sparse_activations=False)

    @torch.no_grad()
    def select(self, hidden_pre: torch.Tensor) -> torch.Tensor:
        """Flat indices, ascending, of the ``k`` largest positive scores of each row."""
        values, latents = hidden_pre.topk(self.k, dim=-1, sorted=False)
        first = torch.arange(values.shape[:-1].numel(), device=values.device)
        flat = first[:, None] * hidden_pre.shape[-1] + latents.reshape(len(first), -1)
        return flat[values.reshape(flat.shape) > 0].sort().values


def _dense(hidden_pre: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    flat = hidden_pre.flatten()
    acts = torch.zeros_like(flat).index_copy(0, kept, flat[kept])
    return acts.reshape(hidden_pre.shape)
