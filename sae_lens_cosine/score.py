"""The cosine score, written once: every class of this package encodes through it."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from typing_extensions import override

from sae_lens_cosine.sparse_step import Entries, sampled_product


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """Norms ``[...]`` of rows ``[..., d_in]``, in at least float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x, dim=-1, dtype=dtype)


def cosine_score(
    x_c: torch.Tensor,
    W_enc: torch.Tensor,
    exponent: torch.Tensor,
    b_enc: torch.Tensor,
    at: Entries | None = None,
) -> torch.Tensor:
    """Score centred activations: ``n^(a_i - 1) <x_c, W_enc[:, i]> + b_enc_i``.

    With columns ``W_enc[:, i] = exp(b_i) u_i`` of unit direction ``u_i`` this is
    ``exp(b_i) n^(a_i) cos(x_c, u_i) + b_enc_i``, ``n = ||x_c||`` (arXiv 2606.15054,
    the score of section 3). ``a = 0`` is a pure cosine and ``a = 1`` the inner
    product, exactly: the factor is then 1.

    The norm and the powers are computed in at least float32, whatever the dtype of
    the weights. A row of zeros scores ``b_enc``, with zero gradient through the norm.

    Args:
        x_c: ``[..., d_in]``, activations minus ``b_dec``.
        W_enc: ``[d_in, d_sae]``, scaled unit columns.
        exponent: ``a``, a scalar or ``[d_sae]``.
        b_enc: ``[d_sae]``.
        at: score these entries of ``[n, d_sae]`` only; ``x_c`` is ``[n, d_in]`` then.

    Returns:
        ``hidden_pre``, ``[..., d_sae]``, in the dtype of ``W_enc``; ``[m]`` in the
        order of the entries with ``at``.
    """
    n = row_norms(x_c).unsqueeze(-1)
    # Below this the squares in the norm underflow and the direction is noise.
    is_zero = n <= torch.finfo(n.dtype).tiny ** 0.5
    log_n = n.masked_fill(is_zero, 1.0).log()
    # The power is split at a common exponent: what enters the product stays near the
    # size of an activation (float16 holds it), and where all exponents are equal one
    # factor a row does everything.
    common = exponent if exponent.ndim == 0 else exponent.detach().mean()
    row_factor = torch.exp((common - 1) * log_n).masked_fill(is_zero, 0.0)
    scaled = (x_c * row_factor).to(W_enc.dtype)
    if at is None:
        hidden_pre = scaled @ W_enc
    else:
        hidden_pre = sampled_product(scaled, W_enc.T, at)
        b_enc = b_enc.index_select(0, at.columns)
    if exponent.ndim > 0:
        power = exponent - common
        if at is None:
            power = power * log_n
        else:
            power = power.index_select(0, at.columns) * log_n.squeeze(-1)[at.rows]
        hidden_pre = hidden_pre * power.exp_()
    dtype = torch.promote_types(hidden_pre.dtype, b_enc.dtype)
    # In place on what only this function has seen: a batch of scores is large.
    return hidden_pre.to(dtype).add_(b_enc).to(W_enc.dtype)


def inverse_norms(weights: torch.Tensor, dim: int) -> torch.Tensor:
    """``1 / ||w_i||`` with ``dim`` kept, in at least float32; 0 where ``w_i`` is."""
    dtype = torch.promote_types(weights.dtype, torch.float32)
    norm = torch.linalg.vector_norm(weights, dim=dim, keepdim=True, dtype=dtype)
    is_zero = norm <= torch.finfo(dtype).tiny ** 0.5
    return norm.masked_fill(is_zero, torch.inf).reciprocal()


def unit(
    weights: torch.Tensor,
    dim: int,
    scale: torch.Tensor | None = None,
    last_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weights with unit norm along ``dim``, in at least float32; zeros stay zeros.

    Unit encoder directions are load-bearing: without them 91-95% of the features
    died in the paper's runs. Zeros have gradient 0: a large one would take the whole
    of a clipped step.

    Args:
        weights: ``[d_sae, d_in]`` with ``dim=1``, ``[d_in, d_sae]`` with ``dim=0``.
        dim: the one of length ``d_in``.
        scale: norm to give them instead, a scalar or ``[d_sae]``.
        last_rows: ``[r, d_in]``, constants that replace the last ``r`` rows of the
            result, with ``dim=1``.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    scale = weights.new_ones(()) if scale is None else scale.to(weights.dtype)
    return _Unit.apply(weights, scale, dim, last_rows)  # type: ignore[return-value]


class _Unit(torch.autograd.Function):
    """``y_i = s_i u_i`` with ``u_i = w_i / ||w_i||``, and its gradient.

    With ``g_i = dL/dy_i``: ``dL/ds_i = <g_i, u_i>`` and ``dL/dw_i`` is the part of
    ``g_i`` orthogonal to ``u_i``, times ``s_i / ||w_i||``. Autograd gets the same with
    three times as many passes over the weights.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any,
        weights: torch.Tensor,
        scale: torch.Tensor,
        dim: int,
        last_rows: torch.Tensor | None,
    ) -> torch.Tensor:
        inverse = inverse_norms(weights, dim)
        ctx.save_for_backward(weights, scale, inverse)
        ctx.dim = dim
        ctx.n_free = len(weights) - (0 if last_rows is None else len(last_rows))
        scaled = weights * (inverse * (scale.unsqueeze(dim) if scale.ndim else scale))
        if last_rows is not None:
            scaled[ctx.n_free :] = last_rows
        return scaled

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        weights, scale, inverse = ctx.saved_tensors
        work = weights * grad
        along = work.sum(ctx.dim, keepdim=True) * inverse
        torch.mul(weights, along * inverse, out=work)
        torch.sub(grad, work, out=work)
        work *= inverse * (scale.unsqueeze(ctx.dim) if scale.ndim else scale)
        work[ctx.n_free :] = 0
        along[ctx.n_free :] = 0
        along = along.squeeze(ctx.dim)
        return work, along if scale.ndim else along.sum(), None, None
