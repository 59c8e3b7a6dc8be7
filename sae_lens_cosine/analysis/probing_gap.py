"""Why one SAE probes better: other features, or the same ones told apart better.

Needs the extra ``saebench``, so ``sae_lens_cosine.analysis`` does not import it.
"""

from collections.abc import Mapping
from typing import Any

from sae_lens import SAE

from sae_lens_cosine.analysis.columns import Frozen
from sae_lens_cosine.analysis.matching import FeatureMatching
from sae_lens_cosine.saebench import ProbingReport, run_sparse_probing


class ProbingGap(Frozen):
    """The difference between two SAEs in probing accuracy, and its two parts.

    ``gap = separability + discovery``. Restricted to matched latents, both SAEs offer
    the probe the same features, so what is left of the gap is that one of them
    separates the classes better with the same features. The remainder is owed to
    features that the other SAE has not found. (The paper: 87% discovery, 13%
    separability.) A share says little where the gap is within the probes' noise.
    """

    gap: float
    """Accuracy of the first minus that of the second, over all latents, as a
    fraction: 0.01 is one point."""
    separability: float
    """The same difference over matched latents alone."""
    discovery: float
    """The remainder."""
    discovery_share: float | None
    """``discovery / gap``: None without a gap; outside 0 to 1 where the parts have
    opposite signs."""
    n_matched: int
    """Features that both probes of the restricted comparison could choose from."""


def probing_gap(
    saes: Mapping[str, SAE[Any]], matching: FeatureMatching, **probing: Any
) -> dict[int, ProbingGap]:
    """Probe two SAEs with all latents and with matched ones, and split the gap.

    Args:
        saes: two SAEs by name, in the order of ``matching``.
        matching: their :func:`.match_features`.
        probing: everything else that :func:`.run_sparse_probing` takes: ``model``,
            ``datasets``, ``output``, ``ks``, ``mask_sinks`` (the numbers are then
            those under the mask).

    Returns:
        k -> the gap; accuracies are means over data sets and repeats.

    Raises:
        ValueError: unless there are two SAEs, or if a k is above the number of matched
            latents; and what :func:`.run_sparse_probing` raises.
    """
    if len(saes) != 2:
        raise ValueError(f"{len(saes)} SAEs: a gap is between two.")
    first, second = saes
    candidates = {
        first: matching.latents_a.tolist(),
        second: matching.latents_b.tolist(),
    }
    # Before the full comparison, which takes longer: it may refuse a k.
    matched = run_sparse_probing(saes, latents=candidates, **probing)
    full = run_sparse_probing(saes, **probing)
    gaps: dict[int, ProbingGap] = {}
    for k in full.summary.columns[full.summary.mask_sinks].scores[first]:
        gap = _accuracy(full, first, k) - _accuracy(full, second, k)
        separability = _accuracy(matched, first, k) - _accuracy(matched, second, k)
        gaps[k] = ProbingGap(
            gap=gap,
            separability=separability,
            discovery=gap - separability,
            discovery_share=(gap - separability) / gap if gap else None,
            n_matched=len(matching.latents_a),
        )
    return gaps


def _accuracy(report: ProbingReport, name: str, k: int) -> float:
    column = report.summary.columns[report.summary.mask_sinks]
    return column.scores[name][k].mean.mean
