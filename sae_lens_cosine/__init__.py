"""Cosine-scored sparse autoencoders for SAELens.

Importing this package registers its architectures with SAELens; from then on
`cosine_batchtopk`, `cosine_topk` and `cosine_jumprelu` are names like any other.
"""

from sae_lens_cosine.batchtopk_sae import (
    CosineBatchTopKTrainingSAE,
    CosineBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.calibration import calibrate_threshold
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAE, CosineJumpReLUSAEConfig
from sae_lens_cosine.published import (
    cosine_scored_saes_disk_loader,
    cosine_scored_saes_huggingface_loader,
)
from sae_lens_cosine.registration import register
from sae_lens_cosine.score import cosine_score
from sae_lens_cosine.sink_batchtopk_sae import (
    SinkBatchTopKTrainingSAE,
    SinkBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.topk_sae import (
    CosineTopKSAE,
    CosineTopKSAEConfig,
    CosineTopKTrainingSAE,
    CosineTopKTrainingSAEConfig,
)

__version__ = "0.1.0"

__all__ = [
    "CosineBatchTopKTrainingSAE",
    "CosineBatchTopKTrainingSAEConfig",
    "CosineJumpReLUSAE",
    "CosineJumpReLUSAEConfig",
    "CosineTopKSAE",
    "CosineTopKSAEConfig",
    "CosineTopKTrainingSAE",
    "CosineTopKTrainingSAEConfig",
    "SinkBatchTopKTrainingSAE",
    "SinkBatchTopKTrainingSAEConfig",
    "calibrate_threshold",
    "cosine_score",
    "cosine_scored_saes_disk_loader",
    "cosine_scored_saes_huggingface_loader",
    "register",
]

register()
