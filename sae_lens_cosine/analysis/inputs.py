"""What the commands `diagnose` and `compare` read, checked before they compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sae_lens import SAE, TrainingSAE
from sae_lens.util import extract_stop_at_layer_from_tlens_hook_name

from sae_lens_cosine.demo.contexts import activations_at, pack_contexts
from sae_lens_cosine.token_wise import check_reconstructs_input, check_token_wise
from sae_lens_cosine.validation import check_context_size

EMBEDDED_TEXT = "held-out texts of sae-probes"


@dataclass(frozen=True)
class Inputs:
    """SAEs of one hook, and the text that they are measured on."""

    saes: dict[str, SAE[Any]]
    model: Any
    hook_name: str
    tokens: torch.Tensor
    """``[contexts, context_size]``"""
    prepend_bos: bool
    """Whether every context starts with the BOS token, as in the SAEs' training."""

    def activations(self) -> torch.Tensor:
        """``[tokens, d_in]``, float32, at the hook."""
        stop = extract_stop_at_layer_from_tlens_hook_name(self.hook_name)
        batches = activations_at(
            self.model, self.tokens, [self.hook_name], stop, "Activations"
        )
        return torch.cat([batch[self.hook_name].float() for batch in batches])


def check_saes(saes: Mapping[str, SAE[Any]]) -> str:
    """The one hook that all SAEs read.

    Raises:
        TypeError: for a training SAE, one that reads other tokens, or a transcoder.
        ValueError: if one names no hook, reads a single head, or they differ.
    """
    hooks: dict[str, str] = {}
    for name, sae in saes.items():
        if isinstance(sae, TrainingSAE):
            raise TypeError(
                f"{name!r} is a training SAE ({type(sae).__name__}). Convert it first: "
                "sae.save_inference_model(folder)."
            )
        check_token_wise(name, sae)
        check_reconstructs_input(name, sae)
        metadata = sae.cfg.metadata
        if not metadata.hook_name:
            raise ValueError(
                f"{name!r} does not say where it reads: set hook_name in the metadata "
                "of its cfg.json, for example to 'blocks.15.hook_resid_post'."
            )
        if metadata.hook_head_index is not None:
            raise ValueError(
                f"{name!r} reads head {metadata.hook_head_index} alone, which these "
                "commands do not support: call the functions of sae_lens_cosine.analysis."
            )
        hooks[name] = metadata.hook_name
    if len(set(hooks.values())) > 1:
        raise ValueError(
            f"The SAEs read different hooks, {hooks}: only SAEs of one hook can be "
            "compared."
        )
    return next(iter(hooks.values()))


@torch.no_grad()
def check_width(saes: Mapping[str, SAE[Any]], model: Any, hook_name: str) -> None:
    """Refuse SAEs that do not fit what the model has at the hook.

    Raises:
        ValueError: naming the SAE and both widths, or the hook.
    """
    if hook_name not in model.hook_dict:
        raise ValueError(f"The model has no hook {hook_name!r}: is it the SAEs' model?")
    token = torch.zeros(1, 1, dtype=torch.long, device=model.cfg.device)
    stop = extract_stop_at_layer_from_tlens_hook_name(hook_name)
    _, cache = model.run_with_cache(
        token, names_filter=[hook_name], stop_at_layer=stop, return_type=None
    )
    width = cache[hook_name][0, 0].numel()
    for name, sae in saes.items():
        if sae.cfg.d_in != width:
            raise ValueError(
                f"{name!r} has d_in={sae.cfg.d_in}, but {hook_name!r} has width {width} "
                "in this model: was it trained on another one?"
            )


def read_inputs(
    saes: dict[str, SAE[Any]],
    hook_name: str,
    model: Any,
    texts: Sequence[str],
    n_tokens: int,
    context_size: int,
) -> Inputs:
    """Check that everything fits together, and tokenize.

    Raises:
        ValueError: naming what does not fit.
    """
    check_context_size(context_size, model)
    if n_tokens < context_size:
        raise ValueError(
            f"--tokens={n_tokens} is less than one context of {context_size} tokens."
        )
    check_width(saes, model, hook_name)
    prepend_bos = bool(next(iter(saes.values())).cfg.metadata.prepend_bos)
    tokens = pack_contexts(
        model, texts, context_size, n_tokens // context_size, prepend_bos
    )
    return Inputs(saes, model, hook_name, tokens, prepend_bos)
