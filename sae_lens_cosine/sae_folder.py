"""What the folder of an SAE says about it, before it is opened."""

import json
from pathlib import Path
from typing import Any

from sae_lens.constants import SAE_CFG_FILENAME


def read_config(folder: Path) -> dict[str, Any]:
    """The content of the folder's ``cfg.json``.

    Raises:
        FileNotFoundError: without such a file.
        ValueError: if it is damaged, or the config of something else; it is named.
    """
    path = folder / SAE_CFG_FILENAME
    try:
        cfg = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): save the SAE again.") from error
    if not isinstance(cfg, dict) or not {"d_in", "d_sae"} <= cfg.keys():
        raise ValueError(f"{path} is no config of an SAE: it has no d_in and d_sae.")
    return cfg


def is_training_config(cfg: dict[str, Any]) -> bool:
    """Whether SAELens wrote it for a training SAE; only those have this field."""
    return "decoder_init_norm" in cfg
