"""Pearson's correlation from sums, which a stream adds up batch by batch."""

import torch

# Below this share of the mean square, a variance is the rounding of float64.
_ROUNDING = 1e-12


def pearson(
    n: int,
    sum_x: torch.Tensor,
    sum_y: torch.Tensor,
    sum_xx: torch.Tensor,
    sum_yy: torch.Tensor,
    sum_xy: torch.Tensor,
) -> torch.Tensor:
    """Correlation over ``n`` tokens, NaN where one of the two does not vary.

    All tensors are float64 and broadcast against each other.
    """
    if n == 0:
        return torch.full_like(sum_x * sum_y, torch.nan)
    var_x = sum_xx - sum_x.square() / n
    var_y = sum_yy - sum_y.square() / n
    varies = (var_x > _ROUNDING * sum_xx) & (var_y > _ROUNDING * sum_yy)
    covariance = sum_xy - sum_x * sum_y / n
    scale = (var_x * var_y).clamp(min=0).sqrt().where(varies, torch.nan)
    return (covariance / scale).clamp(-1, 1)
