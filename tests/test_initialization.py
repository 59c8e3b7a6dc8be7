import math

import pytest
import torch
from helpers import activations, step, training_sae

from sae_lens_cosine.initialization import bias_from, typical_norm


def test_geometric_median_resists_an_outlier():
    # Of four points at the corners and one far along the diagonal, the geometric
    # median moves from (0, 0) by less than a corner; the mean goes to (200, 200).
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    x = torch.cat([corners, torch.tensor([[1000.0, 1000.0]])])
    assert bias_from(x, "geometric_median").norm() < math.sqrt(2)
    torch.testing.assert_close(bias_from(x, "mean"), torch.tensor([200.0, 200.0]))
    assert torch.equal(bias_from(x, "zeros"), torch.zeros(2))


def test_geometric_median_on_a_line_is_the_median():
    x = torch.tensor([[0.0], [1.0], [2.0], [30.0], [100.0]])
    torch.testing.assert_close(
        bias_from(x, "geometric_median", max_steps=500),
        torch.tensor([2.0]),
        atol=0.05,
        rtol=0,
    )


def test_geometric_median_of_equal_rows():
    x = torch.full((5, 3), 2.0)
    torch.testing.assert_close(bias_from(x, "geometric_median"), x[0])


@pytest.mark.parametrize(
    ("norm", "method", "expected"),
    [
        # d_in = 16: sqrt(d) = 4, and "auto" leaves it only outside [2, 8]
        (2.0, "auto", 4.0),
        (8.0, "auto", 4.0),
        (1.9, "auto", 1.9),
        (8.1, "auto", 8.1),
        (177.0, "sqrt_d", 4.0),
        (5.0, "median_norm", 5.0),
        (0.0, "auto", 4.0),
    ],
)
def test_typical_norm(norm, method, expected):
    x_c = torch.zeros(3, 16)
    x_c[:, 0] = norm
    assert typical_norm(x_c, method) == pytest.approx(expected, rel=1e-6)


def test_the_first_batch_sets_bias_and_scale_once():
    sae = training_sae()
    x = activations()
    step(sae, x)
    torch.testing.assert_close(sae.b_dec.data, bias_from(x, "geometric_median"))
    norm = (x - sae.b_dec).norm(dim=1).median()
    torch.testing.assert_close(sae.log_scale.data, norm.log())
    scale = sae.log_scale.detach().clone()
    step(sae, 10 * activations(seed=1))
    assert torch.equal(sae.log_scale, scale)
