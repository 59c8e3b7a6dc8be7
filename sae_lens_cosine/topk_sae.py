"""`cosine_topk`: the k best cosine scores of each token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sae_lens.saes.topk_sae import (
    TopKSAE,
    TopKSAEConfig,
    TopKTrainingSAE,
    TopKTrainingSAEConfig,
)
from typing_extensions import override

from sae_lens_cosine.aux_loss import AuxLoss, AuxLossConfig
from sae_lens_cosine.inference import CosineSAE, CosineSAEConfig
from sae_lens_cosine.loss_weighting import WeightedLoss, WeightedLossConfig
from sae_lens_cosine.selection import TokenTopK
from sae_lens_cosine.training import CosineTrainingSAE, CosineTrainingSAEConfig
from sae_lens_cosine.validation import check_k


@dataclass
class CosineTopKSAEConfig(CosineSAEConfig, TopKSAEConfig):
    """
    Configuration of a CosineTopKSAE.

    Args:
        k: latents kept a token.
        rescale_acts_by_decoder_norm: select by the score times the decoder norm.
        exponent_mode: "global" for one exponent, "per_feature" for one a latent.
        sink_rank: most directions of attention sinks that have latents of their own.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.d_sae)

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_topk"


class CosineTopKSAE(CosineSAE, TopKSAE):
    """The ``k`` largest cosine scores of each token, where positive; sinks apart."""

    cfg: CosineTopKSAEConfig  # type: ignore[assignment]

    @override
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Activations ``[..., d_sae]`` of ``x``, ``[..., d_in]``, row by row.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        hidden_pre = self.score(x)
        if self.cfg.rescale_acts_by_decoder_norm:
            hidden_pre = hidden_pre * self.W_dec.norm(dim=-1)
        return self.hook_sae_acts_post(self.select(hidden_pre))


@dataclass(kw_only=True)
class CosineTopKTrainingSAEConfig(
    CosineTrainingSAEConfig, AuxLossConfig, WeightedLossConfig, TopKTrainingSAEConfig
):
    """
    Configuration for training a CosineTopKTrainingSAE; see CosineTrainingSAEConfig.

    Args:
        k: latents kept a token.
        use_sparse_activations: whether training steps follow the kept scores alone, as COO activations: the same step, several times faster.
    """

    use_sparse_activations: bool = True

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.d_sae)
        if int(self.k) != self.k:
            raise ValueError(
                f"k={self.k} must be a whole number of latents a token; a fraction "
                "is possible with the architecture 'cosine_batchtopk'."
            )

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_topk"


class CosineTopKTrainingSAE(WeightedLoss, CosineTrainingSAE, AuxLoss, TopKTrainingSAE):
    """Per-token TopK on the cosine score; saved as `cosine_topk`."""

    cfg: CosineTopKTrainingSAEConfig  # type: ignore[assignment]

    @override
    def get_activation_fn(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return TokenTopK(self.cfg.k)
