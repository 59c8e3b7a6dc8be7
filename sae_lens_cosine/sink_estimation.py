"""Find the few directions that attention sinks live in."""

from typing import ClassVar

import torch

from sae_lens_cosine.precision import KeepsPrecision
from sae_lens_cosine.score import row_norms

MAX_SINKS = 64
"""Sinks after which the subspace is taken to be stable. The 52 of one batch of 4096
SmolLM2 tokens gave the same explained variance as many more."""
MAX_BATCHES = 100
"""Batches after which the estimate is made from whatever sinks there were."""
MAX_LEFT = 0.05
"""Share of the sinks that may remain outliers: odd ones, not worth two latents."""


def is_outlier(x: torch.Tensor, multiple: float) -> torch.Tensor:
    """Rows whose norm exceeds ``multiple`` times the median norm: ``[n]``, bool.

    Attention sinks have norms 100 times those of other tokens; trained on as they
    are, they leave a cosine SAE worse than the mean on all the others (measured:
    explained variance -0.46 on SmolLM2-135M, layer 15). Nothing is an outlier where
    most rows are zero.

    Args:
        x: ``[n, d_in]``, uncentred activations.
        multiple: of the median norm; the paper uses 10.
    """
    norms = row_norms(x)
    median = norms.median()
    return (norms > multiple * median) & (median > 0)


def sink_subspace(
    sinks: torch.Tensor, ordinary_norm: float, limit: float, max_rank: int
) -> torch.Tensor:
    """The fewest directions without which a sink is no larger than other tokens.

    Args:
        sinks: ``[n, d_in]``, centred on ``b_dec``.
        ordinary_norm: median norm of the other tokens, centred alike.
        limit: norm above which what remains of a sink would still be an outlier.
        max_rank: directions at the most.

    Returns:
        Orthonormal rows ``[r, d_in]``: the first ``r`` right singular vectors, for the
        smallest ``r`` whose median remainder is below ``ordinary_norm`` and that
        leaves no more than a twentieth of the sinks beyond ``limit``, a kind of their
        own that the median does not see. If only the median is met, as many as may
        be; none if not even that, as with rows that are large and share nothing.
    """
    sinks = sinks.to(torch.promote_types(sinks.dtype, torch.float32))
    _, _, directions = torch.linalg.svd(sinks, full_matrices=False)
    found = directions[:0]
    for rank in range(1, min(max_rank, len(directions)) + 1):
        first = directions[:rank]
        remainder = row_norms(sinks - sinks @ first.T @ first)
        if remainder.median() < ordinary_norm:
            found = first
            if (remainder > limit).float().mean() <= MAX_LEFT:
                break
    return found


class SinkEstimator(KeepsPrecision):
    """Collects sinks over the first batches of training, in buffers that resume.

    Large norms alone are no sinks: a heavy tail of norms reaches past any limit as
    well. Sinks stand apart from the other tokens, so at least as many rows must lie
    beyond the limit as in the octave below it.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        name: torch.float32
        for name in ("rows", "n_rows", "n_below", "median_sum", "n_batches", "is_done")
    }

    rows: torch.Tensor  # the first MAX_SINKS beyond the limit
    n_rows: torch.Tensor  # all of them
    n_below: torch.Tensor  # in the octave below
    median_sum: torch.Tensor
    n_batches: torch.Tensor
    is_done: torch.Tensor

    def __init__(self, d_in: int, device: torch.device) -> None:
        super().__init__()
        shapes = {"rows": (MAX_SINKS, d_in)}
        for name in self.precision_floors:
            # SAELens casts every buffer to the SAE's dtype on loading, so counts and
            # flags are floats.
            tensor = torch.zeros(
                shapes.get(name, ()), dtype=torch.float32, device=device
            )
            self.register_buffer(name, tensor)

    @torch.no_grad()
    def collect(self, x: torch.Tensor, multiple: float) -> None:
        """Take in a batch of uncentred activations ``[n, d_in]``."""
        norms = row_norms(x)
        median = norms.median()
        if median == 0:  # mostly padding, which says nothing about norms
            return
        limit = multiple * median
        beyond = x[norms > limit]
        kept = self._n_kept
        new = beyond[: MAX_SINKS - kept]
        self.rows[kept : kept + len(new)] = new.to(self.rows.dtype)
        self.n_rows += len(beyond)
        self.n_below += ((norms > limit / 2) & (norms <= limit)).sum()
        self.median_sum += median
        self.n_batches += 1

    def rescale(self, factor: float) -> None:
        """Go on with activations that are ``factor`` times those collected."""
        self.rows *= factor
        self.median_sum *= factor

    @property
    def _n_kept(self) -> int:
        return min(int(self.n_rows), MAX_SINKS)

    @property
    def is_ready(self) -> bool:
        """Whether enough was collected and no estimate has been made yet."""
        enough = self.n_rows >= MAX_SINKS or self.n_batches >= MAX_BATCHES
        return not self.is_done and bool(enough)

    @torch.no_grad()
    def estimate(
        self, b_dec: torch.Tensor, ordinary_norm: float, multiple: float, max_rank: int
    ) -> tuple[torch.Tensor, float]:
        """Directions ``[r, d_in]`` and the norm above which a token is a sink."""
        self.is_done.fill_(1)
        limit = multiple * float(self.median_sum / self.n_batches)
        sinks = self.rows[: self._n_kept] - b_dec.to(self.rows.dtype)
        self.rows.zero_()
        if self.n_rows <= self.n_below:
            return sinks[:0], limit
        return sink_subspace(sinks, ordinary_norm, limit, max_rank), limit
