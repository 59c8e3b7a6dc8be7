"""Setting the threshold of a JumpReLU SAE from activations."""

import torch
from sae_lens import SAE
from sae_lens.saes.jumprelu_sae import JumpReLUSAE

from sae_lens_cosine.validation import check_activations, check_k


@torch.no_grad()
def calibrate_threshold(
    sae: SAE, activations: torch.Tensor, k: float, *, batch_size: int = 1024
) -> float:
    """Give every latent the threshold at which ``k`` are active on average.

    It is the value next below the ``k * n`` largest scores of ``n`` tokens, so that on
    these very tokens the mean number of active latents is ``k`` exactly, ties and
    tokens with too few positive scores aside. It serves checkpoints that were saved
    without a threshold, and a change of sparsity after training.

    Args:
        sae: a `cosine_jumprelu` SAE, or SAELens's own `jumprelu`; changed in place.
        activations: ``[n, d_in]``, of the model and hook the SAE was trained on;
            attention sinks and padding are better left out. 10,000 rows are plenty.
        k: mean number of active latents a token.
        batch_size: rows that are encoded at a time.

    Returns:
        The threshold, at least 0.

    Raises:
        ValueError: on a ``k`` outside 0 to d_sae, or activations that are not such
            rows; nothing has changed then.
        TypeError: on an SAE without thresholds.
    """
    if not isinstance(sae, JumpReLUSAE):
        raise TypeError(
            f"{type(sae).__name__} has no threshold to set: it selects by k. Only "
            "'cosine_jumprelu' and 'jumprelu' SAEs have one."
        )
    check_k(k, sae.cfg.d_sae)
    if activations.ndim != 2 or len(activations) == 0:
        raise ValueError(
            f"activations has shape {tuple(activations.shape)}: give rows, [n, d_in]."
        )
    check_activations(activations, sae.cfg.d_in)
    n_active = round(k * len(activations))
    if n_active < 1:
        raise ValueError(
            f"k={k} over {len(activations)} rows is less than one active latent: raise "
            "k, or give more rows."
        )
    before = sae.threshold.detach().clone()
    largest = torch.empty(0, device=sae.device)
    try:
        sae.threshold.zero_()
        for batch in activations.split(batch_size):
            scores = sae.encode(batch.to(sae.device)).flatten()
            pool = torch.cat([largest.to(scores.dtype), scores])
            largest = pool.topk(min(n_active + 1, len(pool)), sorted=True).values
    finally:
        sae.threshold.copy_(before)
    threshold = largest[n_active].item() if len(largest) > n_active else 0.0
    sae.threshold.fill_(threshold)
    return threshold
