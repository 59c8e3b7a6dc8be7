"""Measurements on any SAELens SAE and a stream of its activations.

Pure functions: the SAE is left as it is, the stream is read once, and memory does not
grow with it. Results are frozen pydantic models whose fields say their units.
"""

from sae_lens_cosine.analysis.exponents import (
    CheckpointExponents,
    ExponentDensity,
    LearnedExponents,
    exponent_drift,
    exponents_by_density,
    learned_exponents,
)
from sae_lens_cosine.analysis.features import (
    NormDetectors,
    NormFeatures,
    norm_detectors,
    norm_features,
)
from sae_lens_cosine.analysis.geometry import DecoderGeometry, decoder_geometry
from sae_lens_cosine.analysis.matching import FeatureMatching, match_features
from sae_lens_cosine.analysis.score_swap import swap_score
from sae_lens_cosine.evaluation import (
    GroupMetrics,
    ReconstructionMetrics,
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.loss_recovered import LossRecovered, cross_entropy_recovered

__all__ = [
    "CheckpointExponents",
    "DecoderGeometry",
    "ExponentDensity",
    "FeatureMatching",
    "GroupMetrics",
    "LearnedExponents",
    "LossRecovered",
    "NormDetectors",
    "NormFeatures",
    "ReconstructionMetrics",
    "cross_entropy_recovered",
    "decoder_geometry",
    "evaluate_reconstruction",
    "exponent_drift",
    "exponents_by_density",
    "learned_exponents",
    "match_features",
    "norm_detectors",
    "norm_features",
    "norm_quartile_edges",
    "sink_norm_limit",
    "swap_score",
]
