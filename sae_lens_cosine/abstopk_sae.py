"""`cosine_abstopk`: the k scores of each token that are largest by magnitude."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sae_lens.saes.abstopk_sae import (
    AbsTopKSAE,
    AbsTopKSAEConfig,
    AbsTopKTrainingSAE,
    AbsTopKTrainingSAEConfig,
)
from typing_extensions import override

from sae_lens_cosine.topk_sae import (
    CosineTopKSAE,
    CosineTopKSAEConfig,
    CosineTopKTrainingSAE,
    CosineTopKTrainingSAEConfig,
)


@dataclass
class CosineAbsTopKSAEConfig(CosineTopKSAEConfig, AbsTopKSAEConfig):
    """
    Configuration of a CosineAbsTopKSAE.

    Args:
        k: latents kept a token, of either sign.
        rescale_acts_by_decoder_norm: select by the score times the decoder norm.
        exponent_mode: "global" for one exponent, "per_feature" for one a latent.
    """

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_abstopk"


class CosineAbsTopKSAE(CosineTopKSAE, AbsTopKSAE):
    """The ``k`` cosine scores of each token largest by magnitude, with their signs.

    A negative activation says that the input points away from the latent's direction.
    """

    cfg: CosineAbsTopKSAEConfig  # type: ignore[assignment]


@dataclass(kw_only=True)
class CosineAbsTopKTrainingSAEConfig(
    CosineTopKTrainingSAEConfig, AbsTopKTrainingSAEConfig
):
    """
    Configuration for training a CosineAbsTopKTrainingSAE; see CosineTrainingSAEConfig.

    Args:
        k: latents kept a token, of either sign.
        use_sparse_activations: no effect, as in SAELens's AbsTopK: its activations are dense.
    """

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_abstopk"


class CosineAbsTopKTrainingSAE(CosineTopKTrainingSAE, AbsTopKTrainingSAE):
    """Per-token AbsTopK on the cosine score; saved as `cosine_abstopk`."""

    cfg: CosineAbsTopKTrainingSAEConfig  # type: ignore[assignment]

    @override
    def get_activation_fn(self) -> Callable[[torch.Tensor], torch.Tensor]:
        return AbsTopKTrainingSAE.get_activation_fn(self)
