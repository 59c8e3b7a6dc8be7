"""Tensors that keep their precision when a module is cast."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn


class KeepsPrecision(nn.Module):
    """A module whose tensors named in ``precision_floors`` never go below a dtype.

    Exponents, scales and thresholds move in steps that bfloat16 rounds away (an
    average on its way to 0.8 stops at 0.977), so ``.to``, ``.half`` and
    ``.bfloat16`` cast everything but them.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {}

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        floors: dict[int, torch.dtype] = {}
        alive = []  # an id identifies a tensor only while the tensor lives
        for name, floor in self.precision_floors.items():
            tensor = self._parameters.get(name, self._buffers.get(name))
            for held in (tensor, getattr(tensor, "grad", None)):
                if held is not None:
                    floors[id(held)] = floor
                    alive.append(held)

        def cast(tensor: torch.Tensor) -> torch.Tensor:
            out = fn(tensor)
            floor = floors.get(id(tensor))
            if floor is None or not out.is_floating_point():
                return out
            dtype = torch.promote_types(out.dtype, floor)
            return out if out.dtype == dtype else tensor.to(out.device, dtype)

        return super()._apply(cast, recurse)
