"""How well an SAE rebuilds activations, by kind of token.

Residual norms are bimodal: an attention sink is a hundred times longer than an
ordinary token, so an average over all tokens says almost nothing about either. Every
number here therefore comes three ways: all tokens, sinks excluded, sinks only.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from sae_lens import SAE, BatchTopKTrainingSAE

from sae_lens_cosine.validation import check_activations

# Below this share of the squared mean, a group's squared deviation is the rounding of
# float64 and not a spread of the tokens.
_ROUNDING = 1e-24

SINK_GROUP = 4
"""Number of the group of sinks, after those of the four quartiles."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class GroupMetrics(_Frozen):
    """One group of tokens. ``None`` stands where the group leaves a value undefined."""

    n_tokens: int
    token_share: float
    """Share of all evaluated tokens, 0 to 1."""
    explained_variance: float | None
    """``1 - sum ||x - x_hat||^2 / sum ||x - mean||^2``, mean over the same group."""
    norm_ratio: float | None
    """Mean of ``||x_hat|| / ||x||`` over the tokens with ``||x|| > 0``."""
    cosine: float | None
    """Mean cosine of ``x`` and ``x_hat`` over the same tokens, 0 where ``x_hat`` is."""
    l0: float | None
    """Mean number of non-zero latents per token."""
    l0_without_sink_latents: float | None
    """The same without the latents that the SAE reserves for sinks."""


class ReconstructionMetrics(_Frozen):
    """Reconstruction, by kind of token and by quartile of the ordinary norms."""

    all_tokens: GroupMetrics
    sinks_excluded: GroupMetrics
    sinks_only: GroupMetrics
    norm_quartiles: tuple[GroupMetrics, GroupMetrics, GroupMetrics, GroupMetrics]
    """Ordinary tokens, shortest first; split at ``quartile_edges``."""
    quartile_edges: tuple[float, float, float]
    sink_norm_limit: float
    n_tokens: int
    never_fired_share: float | None
    """Share of latents, sink latents apart, that were zero on all ``n_tokens``. A
    small evaluation makes it larger than the share of dead latents."""


def sink_norm_limit(activations: torch.Tensor, multiple: float = 10.0) -> float:
    """Norm beyond which a token counts as an attention sink.

    Args:
        activations: reference set, ``[n, d_in]``. Take it once, for all arms.
        multiple: of the median uncentred norm; the paper filters at 10.

    Raises:
        ValueError: if there are no rows, or their median norm is zero.
    """
    norms = _norms(activations)
    median = float(np.median(norms)) if norms.size else 0.0
    if not (median > 0 and math.isfinite(median)):
        raise ValueError(
            f"The median norm of {norms.size} reference activations is {median}: no "
            "sink limit follows from it. Pass non-zero, finite activations."
        )
    return multiple * median


def norm_quartile_edges(
    activations: torch.Tensor, sink_norm_limit: float
) -> tuple[float, float, float]:
    """Three norms that split the ordinary tokens of a reference set into quarters.

    Args:
        activations: reference set, ``[n, d_in]``.
        sink_norm_limit: tokens beyond this norm are left out.

    Raises:
        ValueError: if no token is within the limit.
    """
    norms = _norms(activations)
    ordinary = norms[norms <= sink_norm_limit]
    if not ordinary.size:
        raise ValueError(
            f"None of {norms.size} reference activations has a norm within "
            f"{sink_norm_limit}: there are no ordinary tokens to split."
        )
    first, second, third = np.quantile(ordinary, [0.25, 0.5, 0.75])
    return float(first), float(second), float(third)


def norm_groups(
    norms: torch.Tensor,
    quartile_edges: tuple[float, float, float],
    sink_norm_limit: float,
) -> torch.Tensor:
    """Number of each token's group: quartiles 0 to 3, or :data:`SINK_GROUP`.

    Args:
        norms: ``[n]``, float64, uncentred.
        quartile_edges: a norm equal to an edge belongs to the lower quartile.
        sink_norm_limit: tokens beyond this norm are sinks.
    """
    edges = torch.tensor(quartile_edges, dtype=norms.dtype, device=norms.device)
    group = torch.bucketize(norms, edges)
    group[norms > sink_norm_limit] = SINK_GROUP
    return group


def evaluate_reconstruction(
    sae: SAE[Any],
    batches: Iterable[torch.Tensor],
    *,
    sink_norm_limit: float,
    quartile_edges: tuple[float, float, float],
) -> ReconstructionMetrics:
    """Reconstruction of a stream of activations in one pass and bounded memory.

    Sums are float64, and the variance is merged from batch to batch (Chan, Golub and
    LeVeque 1979): a difference of raw sums would lose the ordinary tokens beside
    sinks. The result depends on the batch sizes only by rounding.

    Args:
        sae: any inference SAE of SAELens. Latents listed in its ``sink_latents``
            (none if it has no such attribute) count as reserved for sinks.
        batches: activations ``[n, d_in]`` each, in the units the SAE was saved for.
        sink_norm_limit: a token is a sink if its norm is *above* it
            (:func:`sink_norm_limit` of the reference set all arms share).
        quartile_edges: from :func:`norm_quartile_edges`; a norm equal to an edge
            belongs to the lower quartile.

    Raises:
        TypeError: for a BatchTopK *training* SAE, which selects over a whole batch.
        ValueError: if there are no activations, or NaN, or another width than d_in.
    """
    refuse_batch_dependent(sae)
    sink_latents = list(getattr(sae, "sink_latents", ()))
    groups = [_Sums() for _ in range(SINK_GROUP + 1)]
    fired: torch.Tensor | None = None

    for batch in batches:
        check_activations(batch, sae.cfg.d_in)
        acts, x_hat = reconstruct(sae, batch)
        active = acts != 0
        seen = active.any(0)
        fired = seen if fired is None else fired | seen
        rows = (
            _double(batch),
            _double(x_hat),
            active.sum(-1),
            active[:, sink_latents].sum(-1),
        )
        norms = rows[0].norm(dim=-1)
        group = norm_groups(norms, quartile_edges, sink_norm_limit)
        for index in group.unique().tolist():
            chosen = group == index
            group_rows = (t[chosen.to(t.device)] for t in rows)
            groups[index] = groups[index].merge(_Sums.of(*group_rows))

    if fired is None or not any(group.n for group in groups):
        raise ValueError(
            "There are no activations to evaluate: is `batches` a generator that an "
            "earlier call has used up?"
        )
    fired[sink_latents] = False
    n_latents = fired.numel() - len(sink_latents)
    *quartiles, sinks = groups
    ordinary = quartiles[0]
    for quartile in quartiles[1:]:
        ordinary = ordinary.merge(quartile)
    everything = ordinary.merge(sinks)
    first, second, third, fourth = (q.metrics(everything.n) for q in quartiles)
    return ReconstructionMetrics(
        all_tokens=everything.metrics(everything.n),
        sinks_excluded=ordinary.metrics(everything.n),
        sinks_only=sinks.metrics(everything.n),
        norm_quartiles=(first, second, third, fourth),
        quartile_edges=quartile_edges,
        sink_norm_limit=sink_norm_limit,
        n_tokens=everything.n,
        never_fired_share=1 - int(fired.sum()) / n_latents if n_latents else None,
    )


@dataclass(frozen=True)
class _Sums:
    """Sums over a group of tokens, from which its metrics follow. On the CPU."""

    n: int = 0
    mean: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    deviation: float = 0.0
    """``sum ||x - mean||^2``"""
    totals: torch.Tensor = field(default_factory=lambda: torch.zeros(6))
    """Squared residuals, norm ratios, cosines, rows that have them, L0, L0 in sink
    latents."""

    @classmethod
    def of(
        cls,
        x: torch.Tensor,
        x_hat: torch.Tensor,
        l0: torch.Tensor,
        in_sinks: torch.Tensor,
    ) -> "_Sums":
        """Sums of float64 rows ``[n, d_in]`` with latent counts ``[n]``."""
        norms = x.norm(dim=-1)
        ratios = (x_hat.norm(dim=-1) / norms)[norms > 0]
        totals = (
            (x - x_hat).square(),
            ratios,
            torch.cosine_similarity(x, x_hat, dim=-1)[norms > 0],
            torch.ones_like(ratios),
            l0,
            in_sinks,
        )
        mean = x.mean(0)
        return cls(
            n=len(x),
            mean=mean.cpu(),
            deviation=(x - mean).square().sum().item(),
            totals=torch.stack([total.sum().double().cpu() for total in totals]),
        )

    def merge(self, other: "_Sums") -> "_Sums":
        """Sums of both groups together."""
        n = self.n + other.n
        share = other.n / n if n else 0.0
        step = other.mean - self.mean
        between = float(step.square().sum()) * self.n * share
        return _Sums(
            n=n,
            mean=self.mean + step * share,
            deviation=self.deviation + other.deviation + between,
            totals=self.totals + other.totals,
        )

    def metrics(self, n_all: int) -> GroupMetrics:
        """The metrics of this group among ``n_all`` tokens."""
        residual, ratio, cosine, n_ratio, l0, in_sinks = self.totals.tolist()
        rounding = _ROUNDING * self.n * float(self.mean.square().sum())
        varies = self.deviation > rounding
        return GroupMetrics(
            n_tokens=self.n,
            token_share=self.n / n_all,
            explained_variance=1 - residual / self.deviation if varies else None,
            norm_ratio=ratio / n_ratio if n_ratio else None,
            cosine=cosine / n_ratio if n_ratio else None,
            l0=l0 / self.n if self.n else None,
            l0_without_sink_latents=(l0 - in_sinks) / self.n if self.n else None,
        )


def refuse_batch_dependent(sae: SAE[Any]) -> None:
    """Raise ``TypeError`` for an SAE whose output depends on the rest of the batch."""
    if isinstance(sae, BatchTopKTrainingSAE):
        raise TypeError(
            f"{type(sae).__name__} selects over a whole batch, so its numbers would "
            "depend on the batch size. Evaluate the inference SAE: save it with "
            "save_inference_model(path), then SAE.load_from_disk(path)."
        )


@torch.no_grad()
def encode(sae: SAE[Any], rows: torch.Tensor) -> torch.Tensor:
    """Dense latents ``[n, d_sae]`` of flat rows ``[n, d_in]``."""
    with flat_rows(sae):
        acts = sae.encode(rows.to(sae.device, sae.dtype))
    return acts.to_dense() if acts.is_sparse else acts


@torch.no_grad()
def reconstruct(sae: SAE[Any], rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense latents ``[n, d_sae]`` and reconstruction ``[n, d_in]`` of flat rows.

    Raises:
        ValueError: if the reconstruction is not finite.
    """
    with flat_rows(sae):
        acts = sae.encode(rows.to(sae.device, sae.dtype))
        x_hat = sae.decode(acts)
    bad = ~torch.isfinite(x_hat).all(-1)
    if bad.any():
        raise ValueError(
            f"The SAE returned NaN or infinite values for {int(bad.sum())} of "
            f"{len(bad)} tokens, the first at row {int(bad.nonzero()[0])}."
        )
    return (acts.to_dense() if acts.is_sparse else acts), x_hat


@contextmanager
def flat_rows(sae: SAE[Any]) -> Iterator[None]:
    """Let a hook_z SAE take ``[n, heads * d_head]`` for the moment."""
    reshapes = sae.hook_z_reshaping_mode
    if reshapes:
        sae.turn_off_forward_pass_hook_z_reshaping()
    try:
        yield
    finally:
        if reshapes:
            sae.turn_on_forward_pass_hook_z_reshaping()


def _double(x: torch.Tensor) -> torch.Tensor:
    """float64 on the same device, or on the CPU where the device has none (MPS)."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def _norms(activations: torch.Tensor) -> np.ndarray:
    return _double(activations.detach()).norm(dim=-1).flatten().cpu().numpy()
