"""All measurements on some SAEs of one hook."""

import time
import warnings
from importlib.metadata import version
from itertools import combinations
from typing import Any

import torch
from sae_lens import SAE
from sae_lens.saes.jumprelu_sae import JumpReLUSAE
from tqdm.auto import tqdm

from sae_lens_cosine.analysis.exponents import exponents_by_density, learned_exponents
from sae_lens_cosine.analysis.features import norm_detectors, norm_features
from sae_lens_cosine.analysis.geometry import decoder_geometry
from sae_lens_cosine.analysis.inputs import Inputs
from sae_lens_cosine.analysis.matching import match_features
from sae_lens_cosine.analysis.results import (
    Analysis,
    AnalysisSettings,
    Diagnosis,
    OtherScore,
    Pair,
)
from sae_lens_cosine.analysis.score_swap import swap_score
from sae_lens_cosine.demo.results import learned_values
from sae_lens_cosine.evaluation import (
    ReconstructionMetrics,
    evaluate_reconstruction,
    norm_quartile_edges,
    sink_norm_limit,
)
from sae_lens_cosine.inference import CosineSAE
from sae_lens_cosine.loss_recovered import LossRecovered, cross_entropy_recovered

LOSS_TOKENS = 4096
"""A forward pass of the whole model for each SAE; so many tokens at the most."""
SWAP_TOKENS = 10_000
"""On which thresholds are set anew."""
_BATCH = 1024
_PACKAGES = ("sae-lens-cosine", "sae-lens", "transformer-lens", "torch")


def analyse(inputs: Inputs, text: str) -> Analysis:
    """Diagnose every SAE, and match every two.

    Args:
        inputs: checked SAEs, model and tokens.
        text: what the report calls the text.
    """
    start = time.perf_counter()
    stream = _Stream(inputs.activations())
    context_size = inputs.tokens.shape[1]
    tokens = inputs.tokens[: max(1, LOSS_TOKENS // context_size)]
    n_saes = len(inputs.saes)
    with tqdm(total=tokens.numel(), desc="Loss recovered", unit="token") as bar:
        losses = cross_entropy_recovered(
            inputs.model,
            inputs.saes,
            inputs.hook_name,
            tokens,
            sink_norm_limit=stream.limit,
            on_batch=lambda n: bar.update(n * context_size),
        )
    with tqdm(total=n_saes * (n_saes + 1) // 2, desc="Diagnosis", unit="step") as bar:
        arms: dict[str, Diagnosis] = {}
        for name, sae in inputs.saes.items():
            bar.set_postfix_str(name)
            arms[name] = _diagnose(name, sae, stream, losses[name])
            bar.update()
        pairs: list[Pair] = []
        for first, second in combinations(inputs.saes, 2):
            bar.set_postfix_str(f"{first}, {second}")
            pairs.append(_match(inputs.saes, arms, first, second, stream))
            bar.update()
    return Analysis(
        settings=AnalysisSettings(
            model=inputs.model.cfg.model_name,
            hook_name=inputs.hook_name,
            text=text,
            tokens=inputs.tokens.numel(),
            context_size=context_size,
            prepend_bos=inputs.prepend_bos,
            loss_tokens=tokens.numel(),
            versions={name: version(name) for name in _PACKAGES},
            minutes=round((time.perf_counter() - start) / 60, 1),
        ),
        arms=arms,
        pairs=pairs,
    )


class _Stream:
    """Activations that can be read several times, and their groups by norm."""

    def __init__(self, activations: torch.Tensor) -> None:
        self.activations = activations
        self.limit = sink_norm_limit(activations)
        self.edges = norm_quartile_edges(activations, self.limit)

    @property
    def batches(self) -> tuple[torch.Tensor, ...]:
        return self.activations.split(_BATCH)

    @property
    def groups(self) -> dict[str, Any]:
        return {"sink_norm_limit": self.limit, "quartile_edges": self.edges}


def _diagnose(
    name: str, sae: SAE[Any], stream: _Stream, loss: LossRecovered
) -> Diagnosis:
    features = norm_features(sae, stream.batches, **stream.groups)
    exponents = learned_exponents(sae) if isinstance(sae, CosineSAE) else None
    per_feature = exponents is not None and exponents.mode == "per_feature"
    reconstruction = evaluate_reconstruction(sae, stream.batches, **stream.groups)
    exponent = 1.0 if exponents is not None and exponents.mean < 0.5 else 0.0
    return Diagnosis(
        architecture=sae.cfg.architecture(),
        reconstruction=reconstruction,
        loss=loss,
        features=features,
        detectors=norm_detectors(features),
        geometry=decoder_geometry(sae),
        exponent_density=exponents_by_density(exponents, features.density)
        if exponents is not None and per_feature
        else None,
        other_score=_other_score(name, sae, exponent, stream, reconstruction),
        **learned_values(sae),
    )


def _other_score(
    name: str,
    sae: SAE[Any],
    exponent: float,
    stream: _Stream,
    own: ReconstructionMetrics,
) -> OtherScore | None:
    if not isinstance(sae, JumpReLUSAE) or not own.sinks_excluded.l0:
        return None
    try:
        swapped = swap_score(sae, stream.activations[:SWAP_TOKENS], exponent)
        reconstruction = evaluate_reconstruction(
            swapped, stream.batches, **stream.groups
        )
    except ValueError as error:  # one row of the report, not worth the others
        warnings.warn(f"{name!r} is not read with another score: {error}", stacklevel=2)
        return None
    return OtherScore(exponent=exponent, reconstruction=reconstruction)


def _match(
    saes: dict[str, SAE[Any]],
    arms: dict[str, Diagnosis],
    first: str,
    second: str,
    stream: _Stream,
) -> Pair:
    matching = match_features(
        saes[first], saes[second], stream.batches, sink_norm_limit=stream.limit
    )
    return Pair(
        first=first,
        second=second,
        matching=matching,
        unmatched_first=norm_detectors(arms[first].features, matching.unmatched_a),
        unmatched_second=norm_detectors(arms[second].features, matching.unmatched_b),
    )
