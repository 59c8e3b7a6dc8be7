"""Which latents answer to the length of a token rather than to its direction."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sae_lens import SAE

from sae_lens_cosine.analysis.columns import Floats, Frozen, Latents
from sae_lens_cosine.analysis.correlation import pearson
from sae_lens_cosine.analysis.firings import firings, reserved_latents, small_batches
from sae_lens_cosine.evaluation import SINK_GROUP, norm_groups

_N_GROUPS = SINK_GROUP + 1


class NormFeatures(Frozen):
    """Every latent's activity by the norm of the token.

    The quartiles are those of ordinary tokens and hold equally many of them, so a
    latent that does not care about the norm has a quarter of its firings in each. A
    latent fires where its activation is not zero; its mass is the sum of ``|a|``.
    """

    n_tokens: int
    quartile_tokens: Latents
    """``[4]``: tokens of this stream in each quartile, shortest first."""
    n_sinks: int
    sink_latents: Latents
    """Latents that the SAE reserves for attention sinks."""
    density: Floats
    """``[d_sae]``: share of all tokens on which the latent fires, 0 to 1."""
    firings: Latents
    """``[d_sae]``: number of ordinary tokens on which it fires."""
    firing_shares: Floats
    """``[d_sae, 4]``: its firings on ordinary tokens, by quartile; rows sum to 1, and
    are NaN where there are none."""
    mass_shares: Floats
    """``[d_sae, 4]``: likewise, its activation mass."""
    sink_firing_share: Floats
    """``[d_sae]``: of all its firings, the share that is on sinks."""
    sink_mass_share: Floats
    """``[d_sae]``: likewise, its activation mass."""
    log_norm_correlation: Floats
    """``[d_sae]``: Pearson's correlation of its activation (0 where it does not fire)
    with ``log ||x||`` over ordinary tokens; NaN where one of them does not vary."""
    dead_age: Latents
    """``[d_sae]``: tokens at the end of the stream since it last fired; ``n_tokens``
    if it never did."""

    @property
    def ordinary_latents(self) -> np.ndarray:
        """Numbers of the latents that are not reserved for sinks."""
        return np.setdiff1d(np.arange(len(self.density)), self.sink_latents)


class NormDetectors(Frozen):
    """How many of a set of latents fire mostly on the longest ordinary tokens."""

    n_latents: int
    """Latents of the set that fired on ordinary tokens; the others do not count."""
    firings_in_q4: float | None
    """Share of the set's firings on ordinary tokens that is in the quartile of the
    longest. Latents that do not care about the norm have 0.25; the paper reports
    0.86 for the inner-product SAE's latents without a counterpart."""
    norm_detector_share: float | None
    """Share of the latents that have more than ``above`` of their firings there."""
    above: float


def norm_features(
    sae: SAE[Any],
    batches: Iterable[torch.Tensor],
    *,
    sink_norm_limit: float,
    quartile_edges: tuple[float, float, float],
) -> NormFeatures:
    """Firings and mass of every latent by norm, in one pass and bounded memory.

    Args:
        sae: any inference SAE of SAELens.
        batches: activations ``[n, d_in]`` each. Their order matters to the dead age
            alone, their sizes to nothing.
        sink_norm_limit: a token is a sink if its norm is above it.
        quartile_edges: from :func:`.norm_quartile_edges` of the same tokens; a norm
            equal to an edge belongs to the lower quartile.

    Raises:
        TypeError: for a BatchTopK *training* SAE, which selects over a whole batch.
        ValueError: if there are no activations, or NaN, or another width than d_in.
    """
    d_sae = sae.cfg.d_sae
    counts = torch.zeros(2, d_sae, _N_GROUPS, dtype=torch.float64)  # firings, mass
    tokens = torch.zeros(_N_GROUPS, dtype=torch.long)
    last = torch.full((d_sae,), -1)
    # Over ordinary tokens: of log norms, and of activations.
    n_logs, logs = 0, torch.zeros(2, dtype=torch.float64)
    sums = torch.zeros(3, d_sae, dtype=torch.float64)
    # Away from 0, or squares of logs would lose what they vary by.
    typical = math.log(quartile_edges[1]) if quartile_edges[1] > 0 else 0.0

    for rows in small_batches(batches, sae):
        found = firings(sae, rows)
        group = norm_groups(found.norms, quartile_edges, sink_norm_limit)
        cell = found.latent * _N_GROUPS + group[found.token]
        for total, weights in zip(counts, (None, found.value.abs()), strict=True):
            total += torch.bincount(cell, weights, counts[0].numel()).view_as(total)
        last.scatter_reduce_(
            0, found.latent, found.token + int(tokens.sum()), reduce="amax"
        )
        tokens += torch.bincount(group, minlength=_N_GROUPS)

        counted = (group != SINK_GROUP) & (found.norms > 0)
        log = found.norms.log().sub(typical).where(counted, 0.0)
        n_logs += int(counted.sum())
        logs += torch.stack([log.sum(), log.square().sum()])
        kept = counted[found.token]
        latent, value = found.latent[kept], found.value[kept]
        products = (value, value.square(), value * log[found.token[kept]])
        for total, product in zip(sums, products, strict=True):
            total += torch.bincount(latent, product, d_sae)

    ordinary, on_sinks = counts[..., :SINK_GROUP], counts[..., SINK_GROUP]
    n_tokens = int(tokens.sum())
    firing_shares, mass_shares = ordinary / ordinary.sum(-1, keepdim=True)
    sink_firing_share, sink_mass_share = on_sinks / counts.sum(-1)
    return NormFeatures(
        n_tokens=n_tokens,
        quartile_tokens=tokens[:SINK_GROUP].numpy(),
        n_sinks=int(tokens[SINK_GROUP]),
        sink_latents=np.array(reserved_latents(sae)),
        density=(counts[0].sum(-1) / n_tokens).numpy(),
        firings=ordinary[0].sum(-1).numpy(),
        firing_shares=firing_shares.numpy(),
        mass_shares=mass_shares.numpy(),
        sink_firing_share=sink_firing_share.numpy(),
        sink_mass_share=sink_mass_share.numpy(),
        log_norm_correlation=pearson(
            n_logs, sums[0], logs[0], sums[1], logs[1], sums[2]
        ).numpy(),
        dead_age=(n_tokens - 1 - last).numpy(),
    )


def norm_detectors(
    features: NormFeatures,
    latents: Sequence[int] | np.ndarray | None = None,
    *,
    above: float = 0.5,
) -> NormDetectors:
    """The share of norm detectors in a set of latents.

    Args:
        features: from :func:`norm_features`.
        latents: the set, for example the latents that :func:`.match_features` leaves
            without a counterpart; by default all that are not reserved for sinks.
        above: share of its firings in the top quartile that makes a norm detector.
    """
    chosen = features.ordinary_latents if latents is None else np.asarray(latents, int)
    chosen = chosen[features.firings[chosen] > 0]
    n_firings = features.firings[chosen]
    in_q4 = features.firing_shares[chosen, 3]
    is_any = len(chosen) > 0
    return NormDetectors(
        n_latents=len(chosen),
        firings_in_q4=float((in_q4 * n_firings).sum() / n_firings.sum())
        if is_any
        else None,
        norm_detector_share=float((in_q4 > above).mean()) if is_any else None,
        above=above,
    )
