"""Cosine-scored sparse autoencoders for SAELens.

Importing this package registers its architectures and the paper's checkpoints with
SAELens; from then on `cosine_batchtopk`, `cosine_topk`, `cosine_abstopk`,
`cosine_jumprelu`, `cosine_matryoshka_batchtopk` and `reweighted_batchtopk` are names
like any other.
"""

from sae_lens_cosine.abstopk_sae import (
    CosineAbsTopKSAE,
    CosineAbsTopKSAEConfig,
    CosineAbsTopKTrainingSAE,
    CosineAbsTopKTrainingSAEConfig,
)
from sae_lens_cosine.batchtopk_sae import (
    CosineBatchTopKTrainingSAE,
    CosineBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.calibration import calibrate_threshold
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAE, CosineJumpReLUSAEConfig
from sae_lens_cosine.jumprelu_training_sae import (
    CosineJumpReLUTrainingSAE,
    CosineJumpReLUTrainingSAEConfig,
)
from sae_lens_cosine.matryoshka_batchtopk_sae import (
    CosineMatryoshkaBatchTopKTrainingSAE,
    CosineMatryoshkaBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.published import (
    cosine_scored_saes_disk_loader,
    cosine_scored_saes_huggingface_loader,
)
from sae_lens_cosine.registration import register
from sae_lens_cosine.reweighted_batchtopk_sae import (
    ReweightedBatchTopKTrainingSAE,
    ReweightedBatchTopKTrainingSAEConfig,
)
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
    "CosineAbsTopKSAE",
    "CosineAbsTopKSAEConfig",
    "CosineAbsTopKTrainingSAE",
    "CosineAbsTopKTrainingSAEConfig",
    "CosineBatchTopKTrainingSAE",
    "CosineBatchTopKTrainingSAEConfig",
    "CosineJumpReLUSAE",
    "CosineJumpReLUSAEConfig",
    "CosineJumpReLUTrainingSAE",
    "CosineJumpReLUTrainingSAEConfig",
    "CosineMatryoshkaBatchTopKTrainingSAE",
    "CosineMatryoshkaBatchTopKTrainingSAEConfig",
    "CosineTopKSAE",
    "CosineTopKSAEConfig",
    "CosineTopKTrainingSAE",
    "CosineTopKTrainingSAEConfig",
    "ReweightedBatchTopKTrainingSAE",
    "ReweightedBatchTopKTrainingSAEConfig",
    "SinkBatchTopKTrainingSAE",
    "SinkBatchTopKTrainingSAEConfig",
    "calibrate_threshold",
    "cosine_score",
    "cosine_scored_saes_disk_loader",
    "cosine_scored_saes_huggingface_loader",
    "register",
]

register()
