"""Keys of cached files: hashes of everything that a file's content depends on."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from sae_lens import SAE

# Where a model lies and how it was first initialised: no part of what it computes.
# (The tokenizer is covered by the token ids that it makes.)
_NOT_CONTENT = {"device", "n_devices", "tokenizer_name", "seed", "init_weights"}

# Whose code decides the numbers: another version is another result.
_PACKAGES = ("sae-lens-cosine", "sae-bench", "sae-lens", "scikit-learn", "torch")


def package_versions() -> list[str]:
    """Versions of the packages whose code decides the numbers."""
    return [version(package) for package in _PACKAGES]


def fingerprint(*parts: Any) -> str:
    """32 hex digits over JSON-like values and (mappings of) tensors.

    Tensors count with name, dtype, shape and bytes, so any change of a weight, a row
    or a setting gives another key.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        _update(digest, part)
    return digest.hexdigest()


def fingerprint_model(model: Any) -> str:
    """Key of a language model: its weights and its architecture.

    Buffers (masks, rotary tables) follow from the architecture and are not read.
    """
    config = {k: v for k, v in model.cfg.to_dict().items() if k not in _NOT_CONTENT}
    return fingerprint(config, dict(model.named_parameters()))


def fingerprint_sae(sae: SAE[Any]) -> str:
    """Key of an SAE: its class, configuration and weights, wherever it lies."""
    config = {k: v for k, v in sae.cfg.to_dict().items() if k != "device"}
    sinks = [list(getattr(sae, "sink_latents", ()))]
    return fingerprint(type(sae).__name__, config, sae.state_dict(), sinks)


def _update(digest: "hashlib.blake2b", part: Any) -> None:
    if isinstance(part, torch.Tensor):
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        data = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    elif isinstance(part, Mapping):
        digest.update(f"mapping of {len(part)}".encode())
        for key in sorted(part, key=str):
            digest.update(json.dumps(str(key)).encode())
            _update(digest, part[key])
    else:
        # Names of types, not `repr`: an address in it would change with the process.
        text = json.dumps(part, sort_keys=True, default=_describe)
        digest.update(text.encode())


def _describe(value: Any) -> str:
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    return type(value).__name__
