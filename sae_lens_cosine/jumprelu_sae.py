"""`cosine_jumprelu`: the inference form of every SAE trained with a batch selector."""

from dataclasses import dataclass

import torch
from sae_lens.saes.jumprelu_sae import JumpReLUSAE, JumpReLUSAEConfig
from typing_extensions import override

from sae_lens_cosine.inference import CosineSAE, CosineSAEConfig
from sae_lens_cosine.sparse_step import (
    Entries,
    sparse_product,
    takes_sparse_products,
)

# Above it the dense product is as fast.
_SPARSE_SHARE = 1 / 16


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
        is_on = hidden_pre > self.threshold.clamp(min=0)
        return self.hook_sae_acts_post(torch.where(is_on, hidden_pre, 0))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reconstruction of ``x``, ``[..., d_in]``; decodes active latents alone.

        The same as ``decode(encode(x))``, which it does in these words where somebody
        looks: with hooks, or with the error term.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        if (
            self.use_error_term
            or self.hook_z_reshaping_mode
            or not takes_sparse_products(self, self.hook_dict.values())
        ):
            return super().forward(x)
        hidden_pre = self.score(x.reshape(-1, x.shape[-1]))
        is_on = hidden_pre > self.threshold.clamp(min=0)
        flat = is_on.flatten().nonzero().squeeze(1)
        if len(flat) > _SPARSE_SHARE * is_on.numel():
            return self.decode(torch.where(is_on, hidden_pre, 0)).reshape(x.shape)
        entries = Entries.of_flat(flat, (hidden_pre.shape[0], self.cfg.d_sae))
        acts = hidden_pre.flatten()[flat]
        sae_out = sparse_product(acts, self.W_dec, entries) + self.b_dec
        return self.run_time_activation_norm_fn_out(sae_out).reshape(x.shape)
