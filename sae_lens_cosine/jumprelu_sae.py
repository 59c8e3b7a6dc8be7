"""`cosine_jumprelu`: the inference form of every SAE trained with a batch selector."""

from dataclasses import dataclass

import torch
from sae_lens.saes.jumprelu_sae import JumpReLUSAE, JumpReLUSAEConfig
from typing_extensions import override

from sae_lens_cosine.inference import CosineSAE, CosineSAEConfig


@dataclass
class CosineJumpReLUSAEConfig(CosineSAEConfig, JumpReLUSAEConfig):
    """
    Configuration of a CosineJumpReLUSAE.

    Args:
        exponent_mode: "global" for one exponent, "per_feature" for one a latent.
        sink_rank: most directions of attention sinks that have latents of their own.
    """

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_jumprelu"


class CosineJumpReLUSAE(CosineSAE, JumpReLUSAE):
    """Latents whose cosine score exceeds a threshold: ``s_i 1[s_i > threshold_i]``."""

    cfg: CosineJumpReLUSAEConfig  # type: ignore[assignment]

    @override
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Activations ``[..., d_sae]`` of ``x``, ``[..., d_in]``, row by row.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        hidden_pre = self.score(x)
        is_on = hidden_pre > self.threshold
        return self.hook_sae_acts_post(self.activation_fn(hidden_pre) * is_on)
