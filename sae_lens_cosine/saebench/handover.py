"""The copy of an SAE that SAEBench gets.

SAEBench casts and moves the SAE it is given and writes into its config, so it never
sees the caller's object.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from sae_bench.sae_bench_utils import general_utils
from sae_lens import SAE, TrainingSAE
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench.sources import (
    ModelSource,
    SAESource,
    load_model,
    load_saes,
)
from sae_lens_cosine.token_wise import check_token_wise

AnySAE = TypeVar("AnySAE", bound=SAE[Any])

UNIT_TOLERANCE = 1e-5
"""Largest deviation of a decoder row's norm from 1 that SAEBench lets pass in fp32."""


class Hook(NamedTuple):
    """Where in the language model an SAE reads."""

    name: str
    layer: int


def copy_for_saebench(name: str, sae: AnySAE, model: HookedTransformer) -> AnySAE:
    """Copy an inference SAE to the model's device and dtype, with unit decoder rows.

    Rows that are not unit are folded into the encoder by the SAE's own
    ``fold_W_dec_norm``; rows of zeros (latents that write nothing) stay.

    Args:
        name: how messages call the SAE.
        sae: left exactly as it is.
        model: the language model it will be probed on.

    Returns:
        A new SAE that SAEBench's ``load_and_format_sae`` has accepted (``cfg`` has
        ``hook_name`` and ``hook_layer``).

    Raises:
        TypeError: if it is no SAELens SAE, a training SAE, or one whose latents of a
            token depend on other tokens.
        ValueError: if it names no hook, its decoder rows cannot be made unit, or it
            encodes a row of zeros to NaN.
    """
    if isinstance(sae, TrainingSAE):
        raise TypeError(
            f"{name!r} is a training SAE ({type(sae).__name__}): its activations can "
            "depend on the rest of the batch. Convert it first: "
            "sae.save_inference_model(folder), then SAE.load_from_disk(folder)."
        )
    if not isinstance(sae, SAE):
        raise TypeError(f"{name!r} is a {type(sae).__name__}, not a SAELens SAE.")
    if not sae.cfg.metadata.hook_name:
        raise ValueError(
            f"{name!r} does not say where it reads: set sae.cfg.metadata.hook_name, "
            "for example to 'blocks.15.hook_resid_post'."
        )
    sae = _rebuild(sae)
    check_token_wise(name, sae)
    if not sae.cfg.metadata.model_name:
        sae.cfg.metadata.model_name = model.cfg.model_name
    # Folded before the cast: afterwards the norms would carry the cast's rounding.
    _make_decoder_rows_unit(name, sae)
    sae = sae.to(device=str(model.cfg.device), dtype=model.cfg.dtype)
    _check_zero_row(name, sae)
    general_utils.load_and_format_sae(name, sae, str(model.cfg.device))
    return sae


def check_hook(name: str, sae: SAE[Any], model: HookedTransformer) -> Hook:
    """The hook a formatted copy reads, after checking that it fits the model.

    Raises:
        ValueError: if the model has no such hook, the hook is not ``[batch, seq,
            width]`` (SAEBench would misread heads), or its width is not ``d_in``.
    """
    hook = Hook(sae.cfg.hook_name, sae.cfg.hook_layer)  # type: ignore[attr-defined]
    if hook.name not in model.hook_dict:
        raise ValueError(
            f"{name!r} reads {hook.name!r}, which the model does not have."
        )
    shapes: list[torch.Size] = []
    token = torch.zeros(1, 1, dtype=torch.long, device=model.cfg.device)
    with torch.no_grad():
        model.run_with_hooks(
            token,
            stop_at_layer=hook.layer + 1,
            fwd_hooks=[(hook.name, lambda acts, hook: shapes.append(acts.shape))],  # noqa: ARG005
        )
    if not shapes:
        raise ValueError(
            f"{name!r} reads {hook.name!r}, which a forward pass through layer "
            f"{hook.layer} does not reach."
        )
    if len(shapes[0]) != 3:
        raise ValueError(
            f"{name!r} reads {hook.name!r}, whose activations have the shape "
            f"[batch, seq, {', '.join(map(str, shapes[0][2:]))}]; SAEBench's probing "
            "handles [batch, seq, width] only."
        )
    if shapes[0][-1] != sae.cfg.d_in:
        raise ValueError(
            f"{name!r} has d_in={sae.cfg.d_in}, but {hook.name!r} has width "
            f"{shapes[0][-1]} in this model: was it trained on another one?"
        )
    return hook


def open_saes(
    saes: Mapping[str, SAESource] | Sequence[SAESource], model: ModelSource
) -> tuple[dict[str, SAE[Any]], Any, dict[str, Hook]]:
    """SAEs by name, the model, and where each SAE reads, all checked.

    Raises:
        TypeError, ValueError: as :func:`.load_saes`, :func:`.load_model`,
            :func:`copy_for_saebench` and :func:`check_hook`.
    """
    loaded = load_saes(saes)
    opened = load_model(model)
    # Copied only to be checked: one copy at a time stays in memory.
    hooks = {
        name: check_hook(name, copy_for_saebench(name, sae, opened), opened)
        for name, sae in loaded.items()
    }
    return loaded, opened, hooks


def _rebuild(sae: AnySAE) -> AnySAE:
    """A new SAE of the same class from copies of the config and the weights.

    Not ``copy.deepcopy``: SAELens keeps its input normalisation in closures, which a
    deep copy shares, so that encoding with the copy would write into the original.
    """
    cfg = copy.deepcopy(sae.cfg)
    cfg.device = "meta"
    rebuilt = type(sae)(cfg)
    state = {key: value.detach().clone() for key, value in sae.state_dict().items()}
    rebuilt.load_state_dict(state, assign=True)
    return rebuilt.to(device=sae.W_dec.device)


def _make_decoder_rows_unit(name: str, sae: SAE[Any]) -> None:
    if _rows_are_unit(sae):
        return
    try:
        sae.fold_W_dec_norm()
    except (NotImplementedError, ValueError) as error:
        norms = sae.W_dec.norm(dim=-1)
        raise ValueError(
            f"The decoder rows of {name!r} are not unit (norms from {norms.min():.3g} "
            f"to {norms.max():.3g}), as SAEBench needs them, and cannot be folded into "
            f"its encoder: {error}"
        ) from error


def _rows_are_unit(sae: SAE[Any]) -> bool:
    norms = sae.W_dec.norm(dim=-1).float()
    return bool((((norms - 1).abs() <= UNIT_TOLERANCE) | (norms == 0)).all())


@torch.no_grad()
def _check_zero_row(name: str, sae: SAE[Any]) -> None:
    # SAEBench encodes masked tokens as rows of zeros and multiplies their latents by
    # 0 afterwards. NaN * 0 is NaN, and with it the mean over the whole prompt.
    row = torch.zeros(1, sae.cfg.d_in, device=sae.W_dec.device, dtype=sae.dtype)
    if not sae.encode(row).isfinite().all():
        raise ValueError(
            f"{name!r} encodes a row of zeros to NaN or infinity. SAEBench feeds masked "
            "tokens as such rows, so every prompt that has one would become NaN."
        )
