"""Opening other people's torch files without running their code."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch


def load_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The state dict of a torch file that is one, or holds one as ``state_dict``.

    Raises:
        ValueError: if opening it would take more than tensors and plain containers,
            naming what; if it is damaged; or if it holds no state dict.
    """
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        needs = f"{found.group(1)}" if found else "something else than tensors"
        raise ValueError(
            f"{file} is refused: to open it would import and call {needs}, which can "
            "run any code. Ask its author for a file of tensors only."
        ) from error
    except (RuntimeError, EOFError) as error:
        raise ValueError(
            f"{file} is no complete torch file ({error}): fetch it again."
        ) from error
    if isinstance(content, dict) and "state_dict" in content:
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ValueError(
            f"{file} holds no state dict: a dict of tensors, or one under the key "
            "'state_dict'."
        )
    return content
