"""`cosine_jumprelu` as a training architecture: learned thresholds on the score."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sae_lens.saes.jumprelu_sae import (
    JumpReLU,
    JumpReLUTrainingSAE,
    JumpReLUTrainingSAEConfig,
)
from sae_lens.saes.sae import TrainStepInput
from typing_extensions import override

from sae_lens_cosine.loss_weighting import WeightedLoss, WeightedLossConfig
from sae_lens_cosine.training import CosineTrainingSAE, CosineTrainingSAEConfig
from sae_lens_cosine.validation import check_choice

SPARSITY_LOSS_MODES = ("step", "tanh", "quadratic")


@dataclass(kw_only=True)
class CosineJumpReLUTrainingSAEConfig(
    CosineTrainingSAEConfig, WeightedLossConfig, JumpReLUTrainingSAEConfig
):
    """
    Configuration for training a CosineJumpReLUTrainingSAE; see CosineTrainingSAEConfig.

    Args:
        jumprelu_init_threshold: threshold of every latent at the start, in units of the score.
        jumprelu_bandwidth: width of the window around the threshold in which scores give it a gradient, in units of the score.
        jumprelu_sparsity_loss_mode: "step" for the number of active latents, "tanh" for a smooth count, "quadratic" for a pull towards target_l0.
        l0_coefficient: weight of the sparsity loss.
        l0_warm_up_steps: steps over which that weight grows from 0.
        pre_act_loss_coefficient: weight of the loss that raises the scores of dead latents; None for none.
        jumprelu_tanh_scale: steepness of the smooth count.
        jumprelu_ste_to_input: whether the sparsity loss also moves the encoder, not the thresholds alone.
        target_l0: mean number of active latents a token that "quadratic" pulls towards.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        mode = self.jumprelu_sparsity_loss_mode
        check_choice("jumprelu_sparsity_loss_mode", mode, SPARSITY_LOSS_MODES)
        if self.jumprelu_bandwidth <= 0:
            raise ValueError(
                f"jumprelu_bandwidth={self.jumprelu_bandwidth} must be above 0: it is "
                "the window in which thresholds learn."
            )
        if self.jumprelu_init_threshold < 0:
            raise ValueError(
                f"jumprelu_init_threshold={self.jumprelu_init_threshold} must not be "
                "negative."
            )

    @property
    def k(self) -> float:
        """Latents a token needs, of which those reserved for sinks leave as many."""
        return self.target_l0 or 1.0

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_jumprelu"


class CosineJumpReLUTrainingSAE(WeightedLoss, CosineTrainingSAE, JumpReLUTrainingSAE):
    """JumpReLU on the cosine score: ``s_i 1[s_i > threshold_i]``, thresholds learned."""

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **CosineTrainingSAE.precision_floors,
        "threshold": torch.float32,
    }

    cfg: CosineJumpReLUTrainingSAEConfig  # type: ignore[assignment]

    @override
    def activate(
        self, hidden_pre: torch.Tensor, sink_pre: torch.Tensor | None
    ) -> torch.Tensor:
        """Scores above their thresholds; latents reserved for sinks have none."""
        acts: torch.Tensor = JumpReLU.apply(  # type: ignore[assignment]
            hidden_pre,
            self.threshold.to(hidden_pre.dtype),
            self.bandwidth,
            self.cfg.jumprelu_ste_to_input,
        )
        if sink_pre is None:
            return acts
        # Cut off rather than written over: a gradient there would move thresholds.
        ordinary = acts[..., : -sink_pre.shape[-1]]
        return torch.cat([ordinary, sink_pre.relu().to(acts.dtype)], dim=-1)

    @override
    def calculate_aux_loss(
        self,
        step_input: TrainStepInput,
        feature_acts: torch.Tensor,
        hidden_pre: torch.Tensor,
        sae_out: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """SAELens's sparsity losses, which do not count latents reserved for sinks."""
        if reserved := self.sink_latents:
            mask = torch.zeros_like(hidden_pre, dtype=torch.bool)
            mask[..., reserved] = True
            hidden_pre = hidden_pre.masked_fill(mask, -torch.inf)
            feature_acts = feature_acts.masked_fill(mask, 0.0)
        return super().calculate_aux_loss(step_input, feature_acts, hidden_pre, sae_out)

    @override
    @torch.no_grad()
    def fold_activation_norm_scaling_factor(self, scaling_factor: float) -> None:
        super().fold_activation_norm_scaling_factor(scaling_factor)
        self.threshold.div_(scaling_factor)

    @override
    def process_state_dict_for_saving_inference(
        self, state_dict: dict[str, Any]
    ) -> None:
        super().process_state_dict_for_saving_inference(state_dict)
        # The last optimizer step may have left a threshold below zero, which the
        # next training step would have put back to it.
        state_dict["threshold"] = self.threshold.detach().clamp(min=0)
        state_dict["threshold"][self.sink_latents] = 0
