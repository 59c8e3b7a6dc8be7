"""The paper's own checkpoints, as a SAELens release.

The authors publish three SAEs for layer 18 of Qwen3-8B in their own format: a torch
file with ``W_enc`` and ``W_dec`` both ``[d_sae, d_in]``, raw encoder rows, exponents
``scale_a`` (or ``scale_a_base`` and ``scale_a_delta``) and log scales ``scale_b``, and
one threshold. The loaders here convert it and follow SAELens's protocols, so that the
release has a name and the files on disk can be opened through ``converter=``.
"""

from pathlib import Path
from typing import Any

import sae_lens
import torch
from huggingface_hub import hf_hub_download
from sae_lens.loading import pretrained_sae_loaders as loaders
from sae_lens.loading.pretrained_saes_directory import (
    PretrainedSAELookup,
    get_pretrained_saes_directory,
)
from sae_lens.util import str_to_dtype

from sae_lens_cosine.inference import CosineSAE
from sae_lens_cosine.score import unit
from sae_lens_cosine.torch_files import load_tensors

RELEASE = "cosine-scored-saes-qwen3-8b"
REPO_ID = "Silen/cosine-scored-saes-qwen3-8b"
WEIGHTS_FILE = "sae_final.pt"
CONVERTER = "cosine_scored_saes"
# Explained variance: mean over three seeds in arXiv 2606.15054; L0 is the paper's k.
EXPLAINED_VARIANCE = {"standard": 0.7702, "global-a": 0.7690, "perfeature": 0.7707}
K, D_IN, D_SAE = 80, 4096, 65_536
METADATA: dict[str, Any] = {
    "sae_lens_version": sae_lens.__version__,
    "sae_lens_training_version": None,
    "model_name": "Qwen/Qwen3-8B",
    "hook_name": "blocks.18.hook_resid_post",
    "hf_hook_name": "model.layers.18",
    "context_size": 2048,
    "prepend_bos": False,
    "dataset_path": "HuggingFaceFW/fineweb",
    "k": K,
}
FORMAT = (
    "W_enc and W_dec [d_sae, d_in], b_enc [d_sae], b_dec [d_in], a scalar threshold, "
    "and for a cosine score scale_b with scale_a, or with scale_a_base and "
    "scale_a_delta [d_sae]"
)


def cosine_scored_saes_disk_loader(
    path: str | Path,
    device: str = "cpu",
    cfg_overrides: dict[str, Any] | None = None,
    *,
    allow_uncalibrated: bool = False,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Open a checkpoint of the authors' format: a `converter` for `load_from_disk`.

    Args:
        path: the file, or a folder with ``sae_final.pt`` in it.
        device: where to put the weights.
        cfg_overrides: SAE config entries that replace the converted ones.
        allow_uncalibrated: open a file whose threshold was never set, with a
            threshold of 0; call `calibrate_threshold` on the SAE before any use.

    Raises:
        FileNotFoundError: without such a file.
        ValueError: if the file needs more than tensors to be opened, lacks tensors,
            has some of other names or shapes, or was never calibrated; named.
    """
    path = Path(path)
    file = path / WEIGHTS_FILE if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(
            f"{file} does not exist: give the file of a published checkpoint, or the "
            f"folder that holds {WEIGHTS_FILE}."
        )
    tensors = load_tensors(file)
    check_tensors(file, tensors, allow_uncalibrated)
    cfg = {
        **config_of(tensors["W_enc"].shape, score_of(tensors)),
        "device": device,
        **(cfg_overrides or {}),
    }
    dtype = str_to_dtype(cfg["dtype"])
    weights = convert(tensors)
    for key, value in weights.items():
        keep = key in CosineSAE.precision_floors
        weights[key] = value.to(device, value.dtype if keep else dtype)
    return cfg, weights


def cosine_scored_saes_huggingface_loader(
    repo_id: str,
    folder_name: str,
    device: str = "cpu",
    force_download: bool = False,
    cfg_overrides: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, torch.Tensor], torch.Tensor | None]:
    """Fetch and open a published checkpoint: a `converter` for `from_pretrained`."""
    file = hf_hub_download(
        repo_id, f"{folder_name}/{WEIGHTS_FILE}", force_download=force_download
    )
    cfg, weights = cosine_scored_saes_disk_loader(file, device, cfg_overrides)
    if repo_id == REPO_ID:
        cfg["metadata"] = dict(METADATA)
    cfg["metadata"]["neuronpedia_id"] = cfg.pop("neuronpedia_id", None)
    return cfg, weights, None


def cosine_scored_saes_config_getter(
    repo_id: str,
    folder_name: str,
    device: str | None = None,
    force_download: bool = False,
    cfg_overrides: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The SAE config alone; for the published release, without its 2 GB of weights."""
    if repo_id == REPO_ID and folder_name in EXPLAINED_VARIANCE:
        score = {"standard": None, "global-a": "global", "perfeature": "per_feature"}
        cfg = config_of(torch.Size((D_SAE, D_IN)), score[folder_name])
        return {**cfg, "device": device or "cpu", **(cfg_overrides or {})}
    cfg, _, _ = cosine_scored_saes_huggingface_loader(
        repo_id, folder_name, device or "cpu", force_download, cfg_overrides
    )
    return cfg


def score_of(tensors: dict[str, torch.Tensor]) -> str | None:
    """The exponent mode of a checkpoint's tensors, or None for the inner product."""
    if "scale_b" not in tensors:
        return None
    a = tensors.get("scale_a")
    return "global" if a is not None and a.ndim == 0 else "per_feature"


def config_of(shape: torch.Size, exponent_mode: str | None) -> dict[str, Any]:
    """The SAE config of a checkpoint with ``W_enc`` of ``shape``, ``[d_sae, d_in]``."""
    d_sae, d_in = shape
    # Weights alone do not say where they came from; these widths do.
    known = (d_sae, d_in) == (D_SAE, D_IN)
    cfg: dict[str, Any] = {
        "architecture": "jumprelu" if exponent_mode is None else "cosine_jumprelu",
        "d_in": d_in,
        "d_sae": d_sae,
        "dtype": "float32",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": dict(METADATA)
        if known
        else {"sae_lens_version": sae_lens.__version__},
    }
    if exponent_mode is not None:
        cfg["exponent_mode"] = exponent_mode
    return cfg


def check_tensors(
    file: Path, tensors: dict[str, torch.Tensor], allow_uncalibrated: bool
) -> None:
    """Refuse a state dict that is not of the published format, naming what is off."""
    required = {"W_enc", "W_dec", "b_enc", "b_dec", "threshold"}
    per_feature = {"scale_a_base", "scale_a_delta"}
    if tensors.keys() & per_feature:
        required |= per_feature | {"scale_b"}
    elif tensors.keys() & {"scale_a", "scale_b"}:
        required |= {"scale_a", "scale_b"}
    missing, extra = required - tensors.keys(), tensors.keys() - required
    if missing or extra:
        raise ValueError(
            f"{file} is no published checkpoint: it lacks {sorted(missing)} and has "
            f"{sorted(extra)} besides. The format is {FORMAT}."
        )
    if tensors["W_enc"].ndim != 2:
        raise ValueError(
            f"{file} has W_enc of shape {tuple(tensors['W_enc'].shape)}; the format is "
            f"{FORMAT}."
        )
    d_sae, d_in = tensors["W_enc"].shape
    vector = [(d_sae,)]
    scalar = [(), (1,)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "W_dec": [(d_sae, d_in)],
        "b_enc": vector,
        "b_dec": [(d_in,)],
        "threshold": scalar,
        "scale_a": [(), *vector],
        "scale_b": [(), *vector],
        "scale_a_base": scalar,
        "scale_a_delta": vector,
    }
    wrong = [
        f"{key} {tuple(tensors[key].shape)} instead of {allowed[0]}"
        for key, allowed in shapes.items()
        if key in tensors and tuple(tensors[key].shape) not in allowed
    ]
    if wrong:
        raise ValueError(
            f"{file} has wrong shapes beside W_enc {(d_sae, d_in)}: {', '.join(wrong)}. "
            f"The format is {FORMAT}."
        )
    broken = [key for key, value in tensors.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(f"{file} has NaN or infinite values in {', '.join(broken)}.")
    threshold = tensors["threshold"].item()
    if threshold < 0 and not allow_uncalibrated:
        raise ValueError(
            f"{file} was saved with threshold {threshold}, that is, before it was ever "
            "calibrated: its activations would not be sparse. Open it with "
            "converter=functools.partial(cosine_scored_saes_disk_loader, "
            "allow_uncalibrated=True) and call calibrate_threshold(sae, activations, "
            f"k={K})."
        )


@torch.no_grad()
def convert(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A published state dict in this package's convention, at least in float32.

    The authors score ``exp(a_i log n + b_i) cos(x_c, w_i) + b_enc_i``; here the scale
    moves into the columns, ``W_enc[:, i] = exp(b_i) w_i / ||w_i||``.
    """
    tensors = {
        key: value.to(torch.promote_types(value.dtype, torch.float32))
        for key, value in tensors.items()
    }
    W_enc = tensors["W_enc"]
    weights = {key: tensors[key] for key in ("W_dec", "b_enc", "b_dec")}
    threshold = tensors["threshold"].reshape(()).clamp(min=0)
    weights["threshold"] = threshold.expand(W_enc.shape[0]).contiguous()
    if "scale_b" in tensors:
        W_enc = unit(W_enc, dim=1) * tensors["scale_b"].exp().reshape(-1, 1)
        if "scale_a" in tensors:
            weights["exponent"] = tensors["scale_a"]
        else:
            weights["exponent"] = tensors["scale_a_base"] + tensors["scale_a_delta"]
    weights["W_enc"] = W_enc.T.contiguous()
    return weights


def register_release() -> None:
    """Make SAELens know the release by name; calling it again changes nothing.

    Raises:
        ValueError: if SAELens, or another package, knows something else by the name.
    """
    ours = PretrainedSAELookup(
        release=RELEASE,
        repo_id=REPO_ID,
        model=METADATA["model_name"],
        conversion_func=CONVERTER,
        saes_map={name: name for name in EXPLAINED_VARIANCE},
        expected_var_explained=dict(EXPLAINED_VARIANCE),
        expected_l0=dict.fromkeys(EXPLAINED_VARIANCE, float(K)),
        neuronpedia_id={},
        norm_scaling_factor={},
        config_overrides=None,
    )
    directory = get_pretrained_saes_directory()
    if directory.setdefault(RELEASE, ours) != ours:
        raise ValueError(
            f"SAELens already has a release {RELEASE!r}, of "
            f"{directory[RELEASE].repo_id}: two packages cannot share a name."
        )
    for known, loader in (
        (loaders.NAMED_PRETRAINED_SAE_LOADERS, cosine_scored_saes_huggingface_loader),
        (
            loaders.NAMED_PRETRAINED_SAE_CONFIG_GETTERS,
            cosine_scored_saes_config_getter,
        ),
    ):
        if known.setdefault(CONVERTER, loader) is not loader:  # type: ignore[arg-type]
            raise ValueError(
                f"SAELens already has a loader {CONVERTER!r}, {known[CONVERTER]}: two "
                "packages cannot share a name."
            )
