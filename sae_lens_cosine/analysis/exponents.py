"""The exponents that cosine SAEs have learned: 0 is a cosine, 1 an inner product."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sae_lens import SAE, TrainingSAE
from sae_lens.constants import SAE_WEIGHTS_FILENAME
from safetensors import safe_open
from scipy.stats import spearmanr

from sae_lens_cosine.analysis.columns import Floats, Frozen, Latents
from sae_lens_cosine.analysis.firings import reserved_latents
from sae_lens_cosine.sae_folder import read_config

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class LearnedExponents(Frozen):
    """The distribution of an SAE's exponents, latents reserved for sinks apart."""

    mode: Literal["global", "per_feature"]
    values: Floats
    """``[1]`` if global; else ``[d_sae]``, NaN for latents reserved for sinks."""
    mean: float
    std: float
    """Over latents; 0 if global."""
    lowest: float
    highest: float
    quantiles: tuple[float, float, float, float, float]
    """At :data:`QUANTILES`."""
    below_half_share: float
    """Share of the latents below 0.5, nearer to the cosine than to the inner product."""


class ExponentDensity(Frozen):
    """How exponents go with firing density, over latents that fire."""

    n_latents: int
    spearman: float | None
    """Rank correlation; None where one of the two does not vary."""
    densities: Floats
    """``[groups]``: median density of equally large groups of latents, ascending."""
    exponents: Floats
    """``[groups]``: the mean exponent of each group."""
    group_sizes: Latents


class CheckpointExponents(Frozen):
    """The exponents of one checkpoint."""

    folder: str
    n_tokens: int | None
    """Tokens trained on, from the number at the end of the folder's name."""
    exponents: LearnedExponents


def learned_exponents(sae: SAE[Any]) -> LearnedExponents:
    """The exponents of a cosine SAE, for training or for inference.

    Raises:
        TypeError: for an SAE without exponents.
    """
    exponent = getattr(sae, "exponent", None)
    if exponent is None:
        raise TypeError(
            f"{type(sae).__name__} has no exponents: its architecture "
            f"{sae.cfg.architecture()!r} does not score by the cosine."
        )
    values = exponent.detach().double().reshape(-1).cpu().numpy().copy()
    if exponent.ndim:
        values[reserved_latents(sae)] = np.nan
    known = values[~np.isnan(values)]
    return LearnedExponents(
        mode="per_feature" if exponent.ndim else "global",
        values=values,
        mean=known.mean(),
        std=known.std(),
        lowest=known.min(),
        highest=known.max(),
        quantiles=tuple(np.quantile(known, QUANTILES).tolist()),  # type: ignore[arg-type]
        below_half_share=(known < 0.5).mean(),
    )


def exponents_by_density(
    exponents: LearnedExponents, density: np.ndarray, *, groups: int = 10
) -> ExponentDensity:
    """Relate per-feature exponents to how often each latent fires.

    Args:
        exponents: from :func:`learned_exponents`, per feature.
        density: ``[d_sae]``, such as :attr:`.NormFeatures.density`.
        groups: number of equally large groups of latents to average over.

    Raises:
        ValueError: if there is one exponent for all, or another number of densities.
    """
    if exponents.mode == "global" or len(density) != len(exponents.values):
        raise ValueError(
            f"There are {len(exponents.values)} exponents ({exponents.mode}) and "
            f"{len(density)} densities: give one of each for every latent."
        )
    counted = ~np.isnan(exponents.values) & (density > 0)
    values, density = exponents.values[counted], density[counted]
    varies = len(values) > 1 and np.ptp(values) > 0 and np.ptp(density) > 0
    parts = np.array_split(np.argsort(density, kind="stable"), groups)
    parts = [part for part in parts if len(part)]
    return ExponentDensity(
        n_latents=len(values),
        spearman=spearmanr(values, density)[0] if varies else None,  # type: ignore[arg-type]
        densities=np.array([np.median(density[part]) for part in parts]),
        exponents=np.array([values[part].mean() for part in parts]),
        group_sizes=np.array([len(part) for part in parts]),
    )


def exponent_drift(folders: Iterable[str | Path]) -> tuple[CheckpointExponents, ...]:
    """The exponents of checkpoints, in the order of their training tokens.

    Args:
        folders: checkpoints that SAELens's trainer wrote, or inference SAEs. If a
            folder's name does not end with a number, the given order is kept.

    Raises:
        ValueError: for a folder without weights, without exponents in them, or whose
            ``cfg.json`` is damaged.
    """
    found = [_of_checkpoint(Path(folder)) for folder in folders]
    tokens = [checkpoint.n_tokens for checkpoint in found]
    if None not in tokens:
        found.sort(key=lambda checkpoint: checkpoint.n_tokens or 0)
    return tuple(found)


def _of_checkpoint(folder: Path) -> CheckpointExponents:
    weights = folder / SAE_WEIGHTS_FILENAME
    if not weights.is_file():
        raise ValueError(f"{folder} is no checkpoint: it has no {weights.name}.")
    read_config(folder)  # refuses a damaged one
    with safe_open(weights, framework="pt") as file:
        names = set(file.keys())
    if "exponent_base" in names:
        sae = TrainingSAE.load_from_disk(folder)
    elif "exponent" in names:
        sae = SAE.load_from_disk(folder)
    else:
        raise ValueError(f"The weights in {folder} are not those of a cosine SAE.")
    number = re.search(r"\d+$", folder.resolve().name)
    return CheckpointExponents(
        folder=str(folder),
        n_tokens=int(number.group()) if number else None,
        exponents=learned_exponents(sae),
    )
