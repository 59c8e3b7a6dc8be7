"""What `diagnose` and `compare` find: the schema of ``analysis.json``, and its rows."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sae_lens_cosine.analysis.columns import Frozen
from sae_lens_cosine.analysis.exponents import ExponentDensity
from sae_lens_cosine.analysis.features import NormDetectors, NormFeatures
from sae_lens_cosine.analysis.geometry import DecoderGeometry
from sae_lens_cosine.analysis.matching import FeatureMatching
from sae_lens_cosine.demo.results import ArmResults
from sae_lens_cosine.demo.rows import (
    Row,
    evaluation_rows,
    group_rows,
    loss_rows,
    number,
    percent,
    row,
)
from sae_lens_cosine.evaluation import ReconstructionMetrics


class OtherScore(Frozen):
    """The same weights, read with the other score at the same L0."""

    exponent: float
    """0, the cosine, for an SAE whose exponents are nearer to 1; else 1."""
    reconstruction: ReconstructionMetrics


class Diagnosis(ArmResults):
    """One SAE."""

    reconstruction: ReconstructionMetrics = Field()
    features: NormFeatures
    detectors: NormDetectors
    geometry: DecoderGeometry
    exponent_density: ExponentDensity | None
    """None for one exponent or none at all."""
    other_score: OtherScore | None
    """None for an SAE without thresholds, on which nothing was active, or that
    :func:`.swap_score` refuses (a warning says why)."""


class Pair(Frozen):
    """Two SAEs, feature by feature."""

    first: str
    second: str
    matching: FeatureMatching
    """``a`` is the first."""
    unmatched_first: NormDetectors
    """Among the latents of the first without a counterpart in the second."""
    unmatched_second: NormDetectors


class AnalysisSettings(BaseModel):
    """How the run was made."""

    model_config = ConfigDict(frozen=True)

    model: str
    hook_name: str
    text: str
    tokens: int
    context_size: int
    prepend_bos: bool
    loss_tokens: int
    """Of these, the ones whose cross-entropy was computed."""
    versions: dict[str, str]
    minutes: float


class Analysis(BaseModel):
    """The content of ``analysis.json``."""

    settings: AnalysisSettings
    arms: dict[str, Diagnosis] = Field(min_length=1)
    """By name, in the order of display."""
    pairs: list[Pair]


def analysis_rows(analysis: Analysis) -> list[Row]:
    """Every SAE's headline numbers, in the order of display."""
    arms = list(analysis.arms.values())

    def line(section: str, label: str, read: Callable[[Diagnosis], Any]) -> Row:
        return row(arms, section, label, read)

    rows = evaluation_rows(arms)
    rows += group_rows(arms, "Cosine of x and its copy", lambda g: g.cosine, 3)
    rows += loss_rows(arms, "KL divergence recovered", "kl_")
    norm = "Firings on the longest quarter"
    decoder = "Directions in the decoder"
    other = "Explained variance, other score"
    return [
        *rows,
        line(norm, "of all firings", lambda a: percent(a.detectors.firings_in_q4)),
        line(
            norm,
            "latents with over half",
            lambda a: percent(a.detectors.norm_detector_share),
        ),
        line(
            decoder,
            "mean largest cosine",
            lambda a: number(a.geometry.mean_max_cosine),
        ),
        line(
            decoder,
            "near-duplicate pairs",
            lambda a: f"{a.geometry.n_near_duplicates:,}",
        ),
        line(
            other,
            "exponent",
            lambda a: number(a.other_score and a.other_score.exponent, 0),
        ),
        line(
            other,
            "sinks excluded",
            lambda a: number(
                a.other_score
                and a.other_score.reconstruction.sinks_excluded.explained_variance
            ),
        ),
    ]


PAIR_COLUMNS = {
    "pairs": "features that both have",
    "first matched": "share of its latents that fire",
    "second matched": "likewise",
    "first's rest in Q4": "firings of unmatched latents on the longest quarter",
    "second's rest in Q4": "likewise",
}
"""What of two SAEs is compared, and what it means."""


def pair_rows(pairs: list[Pair]) -> list[Row]:
    """One line a pair of SAEs, with :data:`PAIR_COLUMNS`."""
    return [
        Row(
            "Features that two SAEs share",
            f"{pair.first} / {pair.second}",
            [
                f"{len(pair.matching.latents_a):,}",
                percent(pair.matching.matched_share_a),
                percent(pair.matching.matched_share_b),
                percent(pair.unmatched_first.firings_in_q4),
                percent(pair.unmatched_second.firings_in_q4),
            ],
        )
        for pair in pairs
    ]
