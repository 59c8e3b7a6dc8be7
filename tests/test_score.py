import math

import pytest
import torch

from sae_lens_cosine.score import cosine_score, unit


def score_by_loops(x_c, directions, a, b, b_enc):
    """exp(b_i) n^(a_i) cos(x_c, w_i) + b_enc_i, entry by entry in Python floats."""
    rows = []
    for x in x_c.tolist():
        n = math.sqrt(sum(v * v for v in x))
        row = []
        for i, w in enumerate(directions.T.tolist()):
            w_norm = math.sqrt(sum(v * v for v in w))
            dot = sum(u * v for u, v in zip(x, w, strict=True))
            row.append(math.exp(b[i]) * n ** a[i] * dot / (n * w_norm) + b_enc[i])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_worked_example():
    # x_c = (3, 4): n = 5. w = (0, 2): cos = 4/5. exp(b) = 10, a = 0.5:
    # 10 * sqrt(5) * 0.8 + 1 = 18.8885...
    x_c = torch.tensor([[3.0, 4.0]])
    W = unit(torch.tensor([[0.0], [2.0]]), dim=0) * 10
    out = cosine_score(x_c, W, torch.tensor(0.5), torch.tensor([1.0]))
    torch.testing.assert_close(out, torch.tensor([[10 * 5**0.5 * 0.8 + 1]]))


@pytest.mark.parametrize("per_feature", [False, True])
def test_equals_the_formula_in_float64(per_feature):
    torch.manual_seed(0)
    x_c = torch.randn(7, 5, dtype=torch.float64) * 10
    directions = torch.randn(5, 6, dtype=torch.float64)
    a = torch.randn(6).double() if per_feature else torch.tensor(0.3).double()
    b = torch.randn(6).double()
    b_enc = torch.randn(6).double()
    out = cosine_score(x_c, unit(directions, 0) * b.exp(), a, b_enc)
    expected = score_by_loops(
        x_c, directions, a.expand(6).tolist(), b.tolist(), b_enc.tolist()
    )
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("per_feature", [False, True])
def test_exponent_one_is_the_inner_product_to_the_bit(per_feature):
    torch.manual_seed(0)
    x_c, W, b_enc = torch.randn(9, 5) * 100, torch.randn(5, 6), torch.randn(6)
    exponent = torch.ones(6 if per_feature else ())
    assert torch.equal(cosine_score(x_c, W, exponent, b_enc), x_c @ W + b_enc)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("per_feature", [False, True])
def test_exponent_zero_ignores_the_size_of_a_row(factor, per_feature):
    torch.manual_seed(0)
    x_c, W, b_enc = torch.randn(9, 5), torch.randn(5, 6), torch.randn(6)
    exponent = torch.zeros(6 if per_feature else ())
    torch.testing.assert_close(
        cosine_score(factor * x_c, W, exponent, b_enc),
        cosine_score(x_c, W, exponent, b_enc),
    )


@pytest.mark.parametrize("per_feature", [False, True])
def test_gradients_equal_finite_differences(per_feature):
    torch.manual_seed(0)
    x_c = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    W = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    exponent = torch.randn(5 if per_feature else (), dtype=torch.float64)
    b_enc = torch.randn(5, dtype=torch.float64, requires_grad=True)
    log_scale = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def scored(x_c, W, exponent, log_scale, b_enc):
        return cosine_score(x_c, unit(W, 0) * log_scale.exp(), exponent, b_enc)

    inputs = (x_c, W, exponent.requires_grad_(), log_scale, b_enc)
    assert torch.autograd.gradcheck(scored, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("per_feature", [False, True])
def test_a_zero_row_scores_the_bias_with_a_finite_gradient(dtype, per_feature):
    torch.manual_seed(0)
    x_c = torch.zeros(2, 4, dtype=dtype)
    x_c[1] = 3
    x_c.requires_grad_()
    W = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    exponent = torch.zeros(3 if per_feature else (), requires_grad=True)
    b_enc = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    out = cosine_score(x_c, W, exponent, b_enc)
    assert torch.equal(out[0], b_enc)
    out.sum().backward()
    for tensor in (x_c, W, exponent):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert torch.equal(x_c.grad[0], torch.zeros(4, dtype=dtype))


@pytest.mark.parametrize("per_feature", [False, True])
def test_float16_norms_do_not_overflow(per_feature):
    # 16 entries of 3e4 have norm 1.2e5, above float16's 65504; the cosine with
    # a column of ones is 1, so the score is exp(b) = 2.
    x_c = torch.full((1, 16), 3e4, dtype=torch.float16)
    W = (unit(torch.ones(16, 1), 0) * 2).half()
    exponent = torch.zeros(1 if per_feature else ())
    out = cosine_score(x_c, W, exponent, torch.zeros(1).half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), torch.tensor([[2.0]]), rtol=2e-3, atol=0)


def test_unit_keeps_zeros():
    out = unit(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), dim=1)
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
