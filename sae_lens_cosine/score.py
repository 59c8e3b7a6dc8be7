"""The cosine score, written once: every class of this package encodes through it."""

import torch


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """Norms ``[...]`` of rows ``[..., d_in]``, in at least float32."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return torch.linalg.vector_norm(x, dim=-1, dtype=dtype)


def cosine_score(
    x_c: torch.Tensor,
    W_enc: torch.Tensor,
    exponent: torch.Tensor,
    b_enc: torch.Tensor,
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

    Returns:
        ``hidden_pre``, ``[..., d_sae]``, in the dtype of ``W_enc``.
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
    hidden_pre = (x_c * row_factor).to(W_enc.dtype) @ W_enc
    if exponent.ndim > 0:
        hidden_pre = hidden_pre * torch.exp((exponent - common) * log_n)
    return (hidden_pre + b_enc).to(W_enc.dtype)


def unit(weights: torch.Tensor, dim: int) -> torch.Tensor:
    """Weights with unit norm along ``dim``, in at least float32; zeros stay zeros.

    Zeros have gradient 0: a large one would take the whole of a clipped step.
    Unit encoder directions are load-bearing: without them 91-95% of the features
    died in the paper's runs.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    norm = torch.linalg.vector_norm(weights, dim=dim, keepdim=True)
    is_zero = norm <= torch.finfo(weights.dtype).tiny ** 0.5
    return weights / norm.masked_fill(is_zero, torch.inf)
