"""Which latents of two SAEs are the same feature."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from sae_lens import SAE

from sae_lens_cosine.analysis.columns import Floats, Frozen, Latents
from sae_lens_cosine.analysis.correlation import pearson
from sae_lens_cosine.analysis.decoder_cosines import cosine_blocks, unit_rows
from sae_lens_cosine.analysis.firings import (
    Firings,
    firings,
    ordinary_latents,
    reserved_latents,
    small_batches,
)

_CELLS = 2**22
"""Products of activations that exist at a time: 32 MiB in float64."""


class FeatureMatching(Frozen):
    """Pairs of latents, one of ``a`` and one of ``b``, that are the same feature."""

    latents_a: Latents
    """``[pairs]``, ascending."""
    latents_b: Latents
    """``[pairs]``: their counterparts; no latent occurs twice."""
    decoder_cosines: Floats
    """``[pairs]``"""
    correlations: Floats
    """``[pairs]``: Pearson's, of the activations over ordinary tokens."""
    unmatched_a: Latents
    """Latents of ``a`` without a counterpart, those reserved for sinks apart."""
    unmatched_b: Latents
    sink_latents_a: Latents
    """Latents of ``a`` that are reserved for sinks and were not matched."""
    sink_latents_b: Latents
    matched_share_a: float | None
    """Matched latents of ``a`` among those that fired on an ordinary token and are
    not reserved for sinks: a latent that never fires cannot be matched."""
    matched_share_b: float | None
    n_tokens: int
    """Ordinary tokens that the correlations are over."""
    n_cut_short: int
    """Latents of ``a`` with more close directions in ``b`` than were looked at."""


@torch.no_grad()
def match_features(
    a: SAE[Any],
    b: SAE[Any],
    batches: Iterable[torch.Tensor],
    *,
    sink_norm_limit: float = math.inf,
    min_cosine: float = 0.7,
    min_correlation: float = 0.7,
    max_candidates: int = 64,
) -> FeatureMatching:
    """Match the latents of two SAEs that read the same hook.

    Two latents are the same feature if the cosine of their decoder rows is at least
    ``min_cosine``, the correlation of their activations at least
    ``min_correlation``, and each is the other's best among all that pass both: the
    one with the largest sum of cosine and correlation (of equal ones the lowest).

    1. Decoder cosines, a block at a time, leave candidate pairs (``d_sae^2 d_in``
       multiplications, of which 16 MiB exist at a time).
    2. One pass over the activations adds up each latent's sums, and products for the
       candidates alone (tokens x candidates multiplications), from which the
       correlations follow.

    Memory grows with ``d_sae`` times ``max_candidates`` at the most, never with its
    square: 0.5 GiB beside the weights at a d_sae of 65,536 where every latent has 64
    candidates (``benchmarks/matching.py``).

    Args:
        a: an inference SAE.
        b: another one, of the same ``d_in``.
        batches: activations ``[n, d_in]`` each; their sizes do not matter.
        sink_norm_limit: longer tokens do not count: a few sinks on which everything
            is large would make any two latents correlate.
        min_cosine: of the decoder rows, above 0.
        min_correlation: of the activations.
        max_candidates: counterparts looked at for one latent of ``a``, those with the
            largest cosines; where there are more, ``n_cut_short`` counts the latent.

    Raises:
        TypeError: for a BatchTopK *training* SAE.
        ValueError: if the widths differ, ``min_cosine`` is not above 0, or there are
            no ordinary activations.
    """
    if a.cfg.d_in != b.cfg.d_in:
        raise ValueError(
            f"The SAEs have d_in={a.cfg.d_in} and d_in={b.cfg.d_in}: features are "
            "matched between SAEs of one hook."
        )
    if min_cosine <= 0:
        raise ValueError(f"min_cosine={min_cosine} must be above 0, or all pairs pass.")
    first, second, cosines, n_cut_short = _candidates(a, b, min_cosine, max_candidates)
    sums = _Sums(a.cfg.d_sae, b.cfg.d_sae, first, second)
    for rows in small_batches(batches, a, b):
        ordinary = rows[rows.double().norm(dim=-1) <= sink_norm_limit]
        sums.add(firings(a, ordinary), firings(b, ordinary))
    if sums.n == 0:
        raise ValueError(
            f"No activation has a norm within sink_norm_limit={sink_norm_limit}."
        )
    correlations = sums.correlations()
    passed = correlations >= min_correlation  # NaN does not pass
    first, second = first[passed], second[passed]
    cosines, correlations = cosines[passed], correlations[passed]
    score = cosines + correlations
    is_best = _best(first, score, second) & _best(second, score, first)
    pairs = is_best.nonzero()[:, 0]
    pairs = pairs[first[pairs].argsort()]
    matched_a, matched_b = first[pairs].numpy(), second[pairs].numpy()

    def unmatched(sae: SAE[Any], matched: np.ndarray) -> np.ndarray:
        return np.setdiff1d(ordinary_latents(sae), matched)

    def share(sae: SAE[Any], matched: np.ndarray, fired: torch.Tensor) -> float | None:
        n_alive = int(fired[ordinary_latents(sae)].sum())
        return len(matched) / n_alive if n_alive else None

    return FeatureMatching(
        latents_a=matched_a,
        latents_b=matched_b,
        decoder_cosines=cosines[pairs].numpy(),
        correlations=correlations[pairs].numpy(),
        unmatched_a=unmatched(a, matched_a),
        unmatched_b=unmatched(b, matched_b),
        sink_latents_a=np.array(reserved_latents(a)),
        sink_latents_b=np.array(reserved_latents(b)),
        matched_share_a=share(a, matched_a, sums.squares[0] > 0),
        matched_share_b=share(b, matched_b, sums.squares[1] > 0),
        n_tokens=sums.n,
        n_cut_short=n_cut_short,
    )


def _candidates(
    a: SAE[Any], b: SAE[Any], min_cosine: float, max_candidates: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Pairs of ordinary latents with close decoder rows, and their cosines."""
    latents_a, latents_b = ordinary_latents(a), ordinary_latents(b)
    rows_a, rows_b = unit_rows(a, latents_a), unit_rows(b, latents_b)
    # Room for all that may come, of which only what is written takes memory: kept in
    # pieces, they would lie between the freed blocks and keep gigabytes of them.
    most = len(latents_a) * min(max_candidates, len(latents_b))
    rows, columns = torch.empty(2, most, dtype=torch.long)
    cosines = torch.empty(most, dtype=rows_a.dtype)
    n = n_cut_short = 0
    for start, block in cosine_blocks(rows_a, rows_b):
        is_close = block >= min_cosine
        row, column = is_close.nonzero(as_tuple=True)
        n_close = torch.bincount(row, minlength=len(block))
        crowded = (n_close > max_candidates).nonzero()[:, 0]
        if len(crowded):
            closest = block[crowded].topk(max_candidates, dim=1).indices
            is_close[crowded] = False
            is_close[crowded[:, None], closest] = True
            row, column = is_close.nonzero(as_tuple=True)
            n_cut_short += len(crowded)
        new = slice(n, n + len(row))
        rows[new] = start + row.cpu()
        columns[new] = column.cpu()
        cosines[new] = block[row, column].cpu()
        n = new.stop
    return (
        torch.tensor(latents_a, dtype=torch.long)[rows[:n]],
        torch.tensor(latents_b, dtype=torch.long)[columns[:n]],
        cosines[:n].double(),
        n_cut_short,
    )


class _Sums:
    """Sums over tokens: of every latent, and of products for candidate pairs."""

    def __init__(
        self, d_sae_a: int, d_sae_b: int, first: torch.Tensor, second: torch.Tensor
    ) -> None:
        self.n = 0
        self.pairs = first, second
        self.sums = [torch.zeros(d, dtype=torch.float64) for d in (d_sae_a, d_sae_b)]
        self.squares = [torch.zeros_like(total) for total in self.sums]
        self.products = torch.zeros(len(first), dtype=torch.float64)

    def add(self, a: Firings, b: Firings) -> None:
        """Add the same tokens as both SAEs saw them."""
        self.n += a.n_tokens
        for i, found in enumerate((a, b)):
            d_sae = len(self.sums[i])
            self.sums[i] += torch.bincount(found.latent, found.value, d_sae)
            self.squares[i] += torch.bincount(found.latent, found.value**2, d_sae)
        # Only pairs of which both fire have products to add.
        fires_a, fires_b = (
            torch.zeros(len(total), dtype=torch.bool).index_fill_(0, found.latent, True)
            for total, found in zip(self.sums, (a, b), strict=True)
        )
        both = (fires_a[self.pairs[0]] & fires_b[self.pairs[1]]).nonzero()[:, 0]
        dense_a, dense_b = (
            torch.zeros(len(total), found.n_tokens, dtype=torch.float64).index_put_(
                (found.latent, found.token), found.value
            )
            for total, found in zip(self.sums, (a, b), strict=True)
        )
        for some in both.split(max(1, _CELLS // max(a.n_tokens, 1))):
            first, second = (latents[some] for latents in self.pairs)
            self.products[some] += (dense_a[first] * dense_b[second]).sum(1)

    def correlations(self) -> torch.Tensor:
        """Of every candidate pair; NaN where a latent does not vary."""
        first, second = self.pairs
        return pearson(
            self.n,
            self.sums[0][first],
            self.sums[1][second],
            self.squares[0][first],
            self.squares[1][second],
            self.products,
        )


def _best(
    owner: torch.Tensor, score: torch.Tensor, other: torch.Tensor
) -> torch.Tensor:
    """Whether each pair is its owner's best: the largest score, then the lowest other."""
    order = np.lexsort((other.numpy(), -score.numpy(), owner.numpy()))
    owners = owner[order]
    is_first = torch.ones(len(owner), dtype=torch.bool)
    is_first[1:] = owners[1:] != owners[:-1]
    is_best = torch.empty_like(is_first)
    is_best[order] = is_first
    return is_best
