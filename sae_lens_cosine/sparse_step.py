r"""Products with matrices of which few entries count, and their gradients.

A training step scores every latent of every token, which takes one dense product.
After selection only ``m = k n`` entries ``(t, i)`` of the ``[n, d_sae]`` matrix
count, and everything else follows from two operations on them, each linear in
``m d_in``, whose gradients are the same two operations:

- `sampled_product`: ``s_ti = <left_t, right_i>`` at the entries alone. With
  ``G_ti = dL/ds_ti`` at the entries and 0 elsewhere::

      dL/dleft_t  = sum_i G_ti right_i        G right
      dL/dright_i = sum_t G_ti left_t         G^T left

- `sparse_product`: ``y_t = sum_i f_ti right_i``, ``f`` given at the entries. With
  ``g_t = dL/dy_t``::

      dL/df_ti    = <g_t, right_i>            sampled_product(g, right)
      dL/dright_i = sum_t f_ti g_t            f^T g

So the encoder's gradient is ``G^T x`` and the decoder's ``f^T g``; what the score does
to its input and weights before the product (norm powers, unit directions, scale) is
elementwise on ``[n, d_in]`` and ``[d_in, d_sae]`` and left to autograd. The sums are
`torch.nn.functional.embedding_bag`, on any device.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from sae_lens.saes.sae import SAE
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag
from transformer_lens.hook_points import HookPoint
from typing_extensions import override


@dataclass(frozen=True)
class Entries:
    """Positions in a matrix of ``shape``, sorted by row and then by column."""

    rows: torch.Tensor  # [m], int64
    columns: torch.Tensor  # [m], int64
    shape: tuple[int, int]

    @classmethod
    def of_flat(cls, flat: torch.Tensor, shape: tuple[int, int]) -> "Entries":
        """Entries at ascending indices into the flattened matrix."""
        return cls(flat // shape[1], flat % shape[1], shape)

    @classmethod
    def of_sparse(cls, matrix: torch.Tensor) -> "Entries":
        """Entries of a coalesced COO matrix."""
        rows, columns = matrix.indices()
        n_rows, n_columns = matrix.shape
        return cls(rows, columns, (n_rows, n_columns))

    def to_sparse(self, values: torch.Tensor) -> torch.Tensor:
        """COO matrix with ``values``, ``[m]``, at the entries."""
        return _ToSparse.apply(values, self)  # type: ignore[return-value]

    def between(self, first: int, end: int) -> tuple["Entries", torch.Tensor]:
        """The entries in columns ``first`` to ``end - 1``, and which ones they are."""
        inside = ((self.columns >= first) & (self.columns < end)).nonzero().squeeze(1)
        return Entries(self.rows[inside], self.columns[inside], self.shape), inside

    @cached_property
    def row_starts(self) -> torch.Tensor:
        return _starts(self.rows, self.shape[0])

    @cached_property
    def column_starts(self) -> torch.Tensor:
        return _starts(self.columns, self.shape[1])

    @cached_property
    def column_order(self) -> torch.Tensor:
        """Permutation that sorts the entries by column."""
        return self.columns.argsort(stable=True)

    def times(self, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """``A dense``, ``[n_rows, d]``, with ``A`` holding ``values`` at the entries."""
        return embedding_bag(
            self.columns,
            dense,
            self.row_starts,
            mode="sum",
            per_sample_weights=values.to(dense.dtype),
        )

    def transposed_times(
        self, values: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        """``A^T dense``, ``[n_columns, d]``."""
        order = self.column_order
        return embedding_bag(
            self.rows[order],
            dense,
            self.column_starts,
            mode="sum",
            per_sample_weights=values[order].to(dense.dtype),
        )

    def sampled(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """``<left_t, right_i>`` at the entries, ``[m]``: the gradient of `times`."""
        with torch.enable_grad():
            values = left.new_zeros(len(self.rows), requires_grad=True)
            product = self.times(values, right.detach())
        return torch.autograd.grad(product, values, left)[0]


def _starts(ids: torch.Tensor, n: int) -> torch.Tensor:
    counts = torch.bincount(ids, minlength=n)
    return counts.cumsum(0) - counts


def merge_sorted(
    first: torch.Tensor, second: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two ascending vectors in one.

    Linear, where the sort would be felt in the time of a training step.

    Args:
        first: ``[m]``, ascending.
        second: ``[r]``, ascending, of values that ``first`` has not.

    Returns:
        Both, ascending, ``[m + r]``, and where in it the second are, ``[r]``.
    """
    r = torch.arange(len(second), device=first.device)
    places = torch.searchsorted(first, second) + r
    merged = first.new_empty(len(first) + len(second)).index_copy_(0, places, second)
    of_first = torch.ones_like(merged, dtype=torch.bool).index_fill_(0, places, False)
    return merged.masked_scatter_(of_first, first), places


def takes_sparse_products(sae: SAE[Any], hooks: Iterable[HookPoint]) -> bool:
    """Whether an SAE may do without dense activations at ``hooks``.

    Not where a hook reads or changes them, in low precision, or while compiled.
    """
    return (
        sae.W_dec.dtype in (torch.float32, torch.float64)
        and not any(hook._forward_hooks or hook._backward_hooks for hook in hooks)
        and not torch.compiler.is_compiling()
    )


class _ToSparse(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, values: torch.Tensor, entries: Entries) -> torch.Tensor:
        ctx.entries = entries
        return torch.sparse_coo_tensor(
            torch.stack([entries.rows, entries.columns]),
            values,
            entries.shape,
            is_coalesced=True,
            check_invariants=False,
        )

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        entries: Entries = ctx.entries
        if grad.is_sparse:
            grad = grad.coalesce()
            if len(grad.values()) == len(entries.rows):  # from `values()`: the same
                return grad.values(), None
            grad = grad.to_dense()
        return grad[entries.rows, entries.columns], None


class _SampledProduct(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, left: torch.Tensor, right: torch.Tensor, entries: Entries
    ) -> torch.Tensor:
        ctx.save_for_backward(left, right)
        ctx.entries = entries
        return entries.sampled(left, right)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        left, right = ctx.saved_tensors
        entries: Entries = ctx.entries
        for_left, for_right, _ = ctx.needs_input_grad
        return (
            entries.times(grad, right) if for_left else None,
            entries.transposed_times(grad, left) if for_right else None,
            None,
        )


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, values: torch.Tensor, right: torch.Tensor, entries: Entries
    ) -> torch.Tensor:
        ctx.save_for_backward(values, right)
        ctx.entries = entries
        return entries.times(values, right)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        values, right = ctx.saved_tensors
        entries: Entries = ctx.entries
        for_values, for_right, _ = ctx.needs_input_grad
        grad = grad.to(right.dtype).contiguous()
        return (
            entries.sampled(grad, right).to(values.dtype) if for_values else None,
            entries.transposed_times(values, grad) if for_right else None,
            None,
        )


def sampled_product(
    left: torch.Tensor, right: torch.Tensor, entries: Entries
) -> torch.Tensor:
    """``left @ right.T`` at ``entries`` alone.

    Args:
        left: ``[n, d]``.
        right: ``[d_sae, d]``, of the same dtype.
        entries: positions in ``[n, d_sae]``.

    Returns:
        ``[m]``, in the order of the entries.
    """
    return _SampledProduct.apply(left.contiguous(), right.contiguous(), entries)  # type: ignore[return-value]


def sparse_product(
    values: torch.Tensor, right: torch.Tensor, entries: Entries
) -> torch.Tensor:
    """``A @ right``, where ``A`` holds ``values`` at ``entries`` and 0 elsewhere.

    Args:
        values: ``[m]``.
        right: ``[d_sae, d]``.
        entries: positions in ``[n, d_sae]``.

    Returns:
        ``[n, d]`` in the dtype of ``right``.
    """
    return _SparseProduct.apply(values, right.contiguous(), entries)  # type: ignore[return-value]
