"""Cosines between decoder rows, a block of rows at a time."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from sae_lens import SAE

from sae_lens_cosine.score import row_norms, unit

_CELLS = 2**22
"""Cosines that exist at a time: 16 MiB in float32, at any d_sae. Larger blocks are
slower: the allocator returns their memory each time."""


class Block(NamedTuple):
    """Cosines of some rows of the first decoder with all of the second."""

    first_row: int
    cosines: torch.Tensor
    """``[rows, rows of the second]``; 0 where one of the two rows is zero."""


def unit_rows(sae: SAE[Any], latents: list[int]) -> torch.Tensor:
    """Unit decoder rows ``[latents, d_in]``, in at least float32; zeros stay zeros."""
    return unit(sae.W_dec.detach()[latents], dim=1)


def has_direction(sae: SAE[Any], latents: list[int]) -> torch.Tensor:
    """Which of the latents have a decoder row that is not zero, ``[latents]``."""
    return row_norms(sae.W_dec.detach()[latents]) > 0


def cosine_blocks(first: torch.Tensor, second: torch.Tensor) -> Iterator[Block]:
    """All cosines between unit rows, ``[n, d_in]`` and ``[m, d_in]``.

    The products are ``n m d_in`` multiplications; memory is bounded.
    """
    second = second.to(first)
    size = max(1, _CELLS // max(len(second), 1))
    for start in range(0, len(first), size):
        yield Block(start, first[start : start + size] @ second.T)
