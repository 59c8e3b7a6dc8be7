"""Checks of user input, made before anything is changed."""

from numbers import Integral
from typing import Any

import torch

SUPPORTED_NORMALIZATIONS = ("none", "expected_average_only_in")

LONGEST_NAME = 150
"""In bytes. Files are called after it and more, and most systems allow them 255."""


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        options = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} is unknown: choose one of {options}.")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number, ``least`` or more."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more.")


def check_context_size(context_size: int, model: Any) -> None:
    """Refuse contexts without a token to predict, or longer than the model reads."""
    check_count("context_size", context_size, 2)
    if context_size > model.cfg.n_ctx:
        raise ValueError(
            f"context_size={context_size} is more than the {model.cfg.n_ctx} tokens "
            "that the model reads."
        )


def check_name(what: str, name: Any) -> None:
    """Refuse a name of ``what`` after which no file could be called."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= LONGEST_NAME:
        raise ValueError(
            f"{what} needs a name of 1 to {LONGEST_NAME} bytes, because files are "
            f"called after it, not {name!r}."
        )


def check_normalization(normalize_activations: str) -> None:
    """Refuse normalisations under which the score cannot be folded into weights."""
    if normalize_activations not in SUPPORTED_NORMALIZATIONS:
        raise ValueError(
            f"normalize_activations={normalize_activations!r} cannot be combined with "
            "a cosine score: the norm of a normalised activation is not a function of "
            "the norm of the activation, so the exponent would lose its meaning and "
            "the normalisation could not be folded into the saved weights. Use 'none' "
            "or 'expected_average_only_in'."
        )


def check_k(k: float, d_sae: int) -> None:
    """Refuse a ``k`` that selects nothing or more latents than there are."""
    if isinstance(k, str) or not 0 < k <= d_sae:
        raise ValueError(f"k={k} must be above 0 and at most d_sae={d_sae}.")


def check_activations(x: torch.Tensor, d_in: int, hook_z: bool = False) -> None:
    """Refuse activations of the wrong width, or with NaN or infinite rows.

    One such row would poison a whole batch through the selection and the gradient
    norm.

    Args:
        x: ``[..., d_in]``, or ``[..., n_heads, d_head]`` if ``hook_z``.
        d_in: width the SAE was built for.
        hook_z: whether the last two dimensions are heads.

    Raises:
        ValueError: naming both widths, or the number of bad rows and the first one.
    """
    width = x.shape[-2:].numel() if hook_z and x.ndim > 1 else x.shape[-1]
    if width != d_in:
        raise ValueError(
            f"The activations have width {width} (shape {tuple(x.shape)}) but the SAE "
            f"has d_in={d_in}: was it trained on another model or hook?"
        )
    # A finite sum has finite terms, and takes a fortieth of the time to look at each.
    if x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32)).isfinite():
        return
    bad = ~torch.isfinite(x).reshape(-1, width).all(dim=-1)
    if bad.any():
        raise ValueError(
            f"{int(bad.sum())} of {bad.numel()} activation rows contain NaN or "
            f"infinite values, the first at row {int(bad.nonzero()[0])}: drop them, or "
            "compute the activations in a wider dtype."
        )
