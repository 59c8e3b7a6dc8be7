"""The version of the format in which SAEs of this package are saved."""

from dataclasses import dataclass, field
from typing import Any, cast

FORMAT_VERSION = 1


@dataclass
class Versioned:
    """A config that says which format its SAE is saved in, and refuses newer ones.

    Format 1: inference columns ``W_enc[:, i] = exp(b_i) u_i``, the tensor ``exponent``.
    """

    # "cmd" keeps it off the command line.
    format_version: int = field(default=FORMAT_VERSION, metadata={"cmd": False})

    def __post_init__(self) -> None:
        if self.format_version > FORMAT_VERSION:
            raise ValueError(
                f"format_version={self.format_version}: this SAE was saved by a newer "
                f"sae-lens-cosine; this one reads formats up to {FORMAT_VERSION}. "
                "Upgrade it: pip install --upgrade sae-lens-cosine."
            )
        cast(Any, super()).__post_init__()
