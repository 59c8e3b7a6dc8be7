"""`cosine_batchtopk`: the best cosine scores of a batch, k a token on average."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE
from sae_lens.saes.sae import SAEConfig
from typing_extensions import override

from sae_lens_cosine.aux_loss import AuxLoss, AuxLossConfig
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAEConfig
from sae_lens_cosine.loss_weighting import WeightedLoss, WeightedLossConfig
from sae_lens_cosine.running_threshold import (
    RunningThreshold,
    RunningThresholdConfig,
)
from sae_lens_cosine.training import CosineTrainingSAE, CosineTrainingSAEConfig
from sae_lens_cosine.validation import check_k


@dataclass(kw_only=True)
class CosineBatchTopKTrainingSAEConfig(
    CosineTrainingSAEConfig,
    AuxLossConfig,
    WeightedLossConfig,
    RunningThresholdConfig,
):
    """
    Configuration for training a CosineBatchTopKTrainingSAE; see CosineTrainingSAEConfig.

    Args:
        k: latents kept a token, on average over the batch; may be a fraction.
        topk_threshold_lr: share of the newest batch in the running threshold.
        threshold_start_step: batches during which the threshold just follows the newest batch, before it is averaged.
        use_sparse_activations: whether training steps follow the kept scores alone, as COO activations: the same step, several times faster.
    """

    use_sparse_activations: bool = True

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.d_sae)

    @override
    @classmethod
    def architecture(cls) -> str:
        return "cosine_batchtopk"

    @override
    def get_inference_config_class(self) -> type[SAEConfig]:
        return CosineJumpReLUSAEConfig


class CosineBatchTopKTrainingSAE(
    WeightedLoss, CosineTrainingSAE, AuxLoss, RunningThreshold, BatchTopKTrainingSAE
):
    """BatchTopK on the cosine score, the paper's SAE; saved as `cosine_jumprelu`."""

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **CosineTrainingSAE.precision_floors,
        "topk_threshold": torch.float64,
    }

    cfg: CosineBatchTopKTrainingSAEConfig  # type: ignore[assignment]

    @override
    def process_state_dict_for_saving_inference(
        self, state_dict: dict[str, Any]
    ) -> None:
        super().process_state_dict_for_saving_inference(state_dict)
        threshold = state_dict.pop("topk_threshold").item()
        state_dict["threshold"] = torch.full_like(
            state_dict["b_enc"], threshold, dtype=torch.float32
        )
        state_dict["threshold"][self.sink_latents] = 0
