"""One SAE's weights, read with another score."""

from typing import Any

import torch
from sae_lens import SAE
from sae_lens.saes.jumprelu_sae import JumpReLUSAE

from sae_lens_cosine.analysis.firings import ordinary_latents
from sae_lens_cosine.calibration import calibrate_threshold
from sae_lens_cosine.evaluation import encode, sink_norm_limit
from sae_lens_cosine.inference import CosineSAE
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAE, CosineJumpReLUSAEConfig
from sae_lens_cosine.score import row_norms
from sae_lens_cosine.validation import check_activations


@torch.no_grad()
def swap_score(
    sae: SAE[Any],
    activations: torch.Tensor,
    exponent: float,
    *,
    batch_size: int = 1024,
) -> CosineJumpReLUSAE:
    """Read an SAE's weights with another exponent, at the same L0.

    A trained cosine SAE read with exponent 1 is scored by the inner product, an
    inner-product SAE read with exponent 0 by the cosine. What changes then is due to
    the score at inference, and what does not was learned in training.

    The scale is matched at the typical norm ``n_0``, the median ``||x - b_dec||``:
    column ``i`` is multiplied by ``n_0^(a_i - exponent)``, so that a token of norm
    ``n_0`` has the scores it had. All thresholds are then multiplied by the factor
    at which the mean number of active latents is what it was on ``activations``.
    Decoder, biases and latents reserved for sinks stay as they are.

    Args:
        sae: a `cosine_jumprelu` SAE (what every BatchTopK SAE of this package is
            saved as) or SAELens's `jumprelu`; left as it is.
        activations: ``[n, d_in]`` of the SAE's model and hook; those beyond 10 times
            the median norm are left out. 10,000 rows are plenty.
        exponent: the new one, for all latents.
        batch_size: rows that are encoded at a time.

    Returns:
        A new SAE.

    Raises:
        TypeError: for an SAE without thresholds.
        ValueError: for activations that are no such rows, an SAE on which nothing is
            active, or thresholds of which some are 0 and others not.
    """
    if not isinstance(sae, JumpReLUSAE):
        raise TypeError(
            f"{type(sae).__name__} has no threshold to set anew: only 'cosine_jumprelu'"
            " and 'jumprelu' SAEs can be read with another score."
        )
    if activations.ndim != 2:
        raise ValueError(
            f"activations has shape {tuple(activations.shape)}: give rows, [n, d_in]."
        )
    check_activations(activations, sae.cfg.d_in)
    is_ordinary = activations.double().norm(dim=-1) <= sink_norm_limit(activations)
    rows = activations[is_ordinary]
    latents = ordinary_latents(sae)
    swapped = _with_exponent(sae, exponent)

    batches = rows.to(sae.device, sae.dtype).split(batch_size)
    norms = [row_norms(swapped.read(batch)[0]) for batch in batches]
    typical = torch.cat(norms).median()
    n_active = sum(
        int((encode(sae, batch)[:, latents] != 0).sum()) for batch in batches
    )
    if n_active == 0:
        raise ValueError("No latent is active on these activations: is it their SAE?")

    before = sae.exponent if isinstance(sae, CosineSAE) else torch.ones_like(typical)
    factor = (typical.log() * (before.detach() - exponent)).exp()
    factor = factor.repeat(sae.cfg.d_sae // factor.numel())[latents]
    relative = _relative(swapped.threshold[latents])
    # With scores in units of their thresholds, one threshold serves all latents.
    for scores, factors in (
        (swapped.W_enc, factor / relative),
        (swapped.b_enc, 1 / relative),
    ):
        scores[..., latents] *= factors.to(scores.dtype)
    common = calibrate_threshold(
        swapped, rows, n_active / len(rows), batch_size=batch_size
    )
    swapped.threshold.copy_(sae.threshold)  # of latents reserved for sinks
    swapped.threshold[latents] = common * relative
    for scores in (swapped.W_enc, swapped.b_enc):
        scores[..., latents] *= relative.to(scores.dtype)
    return swapped


def _with_exponent(sae: JumpReLUSAE, exponent: float) -> CosineJumpReLUSAE:
    """A copy of the SAE's weights that are read with one exponent for all latents."""
    fields = sae.cfg.to_dict() | {
        "architecture": CosineJumpReLUSAEConfig.architecture(),
        "exponent_mode": "global",
        "device": "meta",
    }
    copied = CosineJumpReLUSAE(CosineJumpReLUSAEConfig.from_dict(fields))
    state = {key: value.detach().clone() for key, value in sae.state_dict().items()}
    state["exponent"] = torch.tensor(exponent, dtype=torch.float32, device=sae.device)
    copied.load_state_dict(state, assign=True)
    copied.cfg.device = sae.cfg.device
    return copied.to(device=sae.device).eval()


def _relative(threshold: torch.Tensor) -> torch.Tensor:
    """Thresholds over their mean; 1 where all are equal."""
    if (threshold == threshold[0]).all():
        return torch.ones_like(threshold)
    if (threshold <= 0).any():
        raise ValueError(
            f"{int((threshold <= 0).sum())} of {len(threshold)} thresholds are 0 and "
            "the others not: no common factor brings the same number of latents back."
        )
    return threshold / threshold.mean()
