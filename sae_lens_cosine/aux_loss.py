"""The auxiliary loss that revives dead latents, finite and with a normalisation."""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sae_lens.saes.abstopk_sae import calculate_abstopk_aux_acts
from sae_lens.saes.sae import TrainingSAE, TrainingSAEConfig
from sae_lens.saes.topk_sae import calculate_topk_aux_acts
from typing_extensions import override

from sae_lens_cosine.score import unit
from sae_lens_cosine.validation import check_choice

AuxLossNormalization = Literal["none", "residual_variance", "relative"]
AUX_LOSS_NORMALIZATIONS: tuple[AuxLossNormalization, ...] = (
    "none",
    "residual_variance",
    "relative",
)
AuxActs = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(kw_only=True)
class AuxLossConfig(TrainingSAEConfig, ABC):
    """
    Configuration of the auxiliary loss, besides SAELens's aux_loss_coefficient.

    Args:
        aux_loss_normalization: "none" for squared errors, as in SAELens; "residual_variance" divides them by the variance of what the live latents miss, as in the paper; "relative" does so and multiplies by the typical squared norm of the centred activations, so that the coefficient weighs shares of explained variance whatever the activations' size.
    """

    aux_loss_normalization: AuxLossNormalization = "none"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(
            "aux_loss_normalization",
            self.aux_loss_normalization,
            AUX_LOSS_NORMALIZATIONS,
        )


def aux_loss(
    sae_in: torch.Tensor,
    sae_out: torch.Tensor,
    dead_pre: torch.Tensor,
    dead_rows: torch.Tensor,
    b_dec: torch.Tensor,
    normalization: AuxLossNormalization = "none",
    select_acts: AuxActs = calculate_topk_aux_acts,
) -> torch.Tensor:
    """How badly the best ``d_in / 2`` dead latents reconstruct what the live ones miss.

    With ``e = sae_in - sae_out``, constant, and ``e'`` its reconstruction from unit
    decoder rows without ``b_dec``, the squared error is ``mean ||e' - e||^2``.

    - ``none``: SAELens's loss, squared error times ``min(n_dead / (d_in / 2), 1)``.
    - ``residual_variance``: squared error over ``mean ||e - mean e||^2``; the paper's,
      and dictionary_learning's. It is about 1 whatever the activations' size, beside
      a main loss that is a sum of squares: on activations of norm 100 a coefficient
      of 1/32 is next to nothing.
    - ``relative``: that, times the median of ``||x - b_dec||^2``: the two losses are
      weighed as in Gao et al. (arXiv 2406.04093), where both are shares of a variance.
      The median leaves attention sinks out, whose squares would be all of a mean.

    Args:
        sae_in: ``[n, d_in]``.
        sae_out: ``[n, d_in]``.
        dead_pre: ``[n, n_dead]``, ``hidden_pre`` of the dead latents.
        dead_rows: ``[n_dead, d_in]``, their decoder rows, of any norms; a row of zeros contributes nothing.
        b_dec: ``[d_in]``, a centre of the activations.
        normalization: see above.
        select_acts: SAELens's choice of dead latents, by value or by magnitude.
    """
    n_dead = len(dead_rows)
    if n_dead == 0:
        return sae_out.new_tensor(0.0)
    k_aux = sae_in.shape[-1] // 2
    share = min(n_dead / k_aux, 1.0)
    every = torch.ones(n_dead, dtype=torch.bool, device=dead_pre.device)
    acts = select_acts(min(k_aux, n_dead), dead_pre, every)
    dtype = torch.promote_types(sae_in.dtype, torch.float32)
    residual = (sae_in.to(dtype) - sae_out.to(dtype)).detach()
    reconstruction = (acts @ unit(dead_rows, dim=1).to(acts.dtype)).to(dtype)
    error = (reconstruction - residual).pow(2).sum(dim=-1).mean()
    if normalization == "none":
        return share * error
    missed = variance(residual)
    relative_error = error / missed.masked_fill(missed == 0, torch.inf)
    if normalization == "relative":
        centred = (sae_in.to(dtype) - b_dec.to(dtype)).detach()
        return relative_error * centred.pow(2).sum(dim=-1).median()
    return relative_error


def variance(x: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of the rows of ``x`` from their mean."""
    return (x - x.mean(dim=0)).pow(2).sum(dim=-1).mean()


class AuxLoss(TrainingSAE[Any], ABC):
    """Gives SAELens's TopK family the auxiliary loss of this module.

    SAELens divides by decoder norms, so that one row of zeros makes its loss NaN.
    """

    cfg: Any

    def calculate_topk_aux_loss(
        self,
        sae_in: torch.Tensor,
        sae_out: torch.Tensor,
        hidden_pre: torch.Tensor,
        dead_neuron_mask: torch.Tensor | None,
        select_acts: AuxActs = calculate_topk_aux_acts,
    ) -> torch.Tensor:
        if dead_neuron_mask is None or not dead_neuron_mask.any():
            return sae_out.new_tensor(0.0)
        dead = dead_neuron_mask.nonzero().squeeze(1)
        return self.cfg.aux_loss_coefficient * aux_loss(
            sae_in,
            sae_out,
            self.scores_of(dead, sae_in, hidden_pre),
            self.W_dec.index_select(0, dead),
            self.b_dec,
            self.cfg.aux_loss_normalization,
            select_acts,
        )

    def scores_of(
        self,
        latents: torch.Tensor,
        sae_in: torch.Tensor,  # noqa: ARG002  (read by classes with a sparse step)
        hidden_pre: torch.Tensor,
    ) -> torch.Tensor:
        """``hidden_pre`` of some latents with its gradient, ``[n, n_latents]``."""
        return hidden_pre.index_select(-1, latents)

    def calculate_abstopk_aux_loss(
        self,
        sae_in: torch.Tensor,
        sae_out: torch.Tensor,
        hidden_pre: torch.Tensor,
        dead_neuron_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        return self.calculate_topk_aux_loss(
            sae_in, sae_out, hidden_pre, dead_neuron_mask, calculate_abstopk_aux_acts
        )
