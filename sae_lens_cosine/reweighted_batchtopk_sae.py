"""`reweighted_batchtopk`: the inner product with a loss that weighs tokens by norm.

The baseline of the paper's falsification experiment: BatchTopK trained on the same
rows and from the same start as the cosine SAEs of this package.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from sae_lens_cosine.initialization import BIAS_INITS, BiasInit, bias_from
from sae_lens_cosine.loss_weighting import WeightedLoss, WeightedLossConfig
from sae_lens_cosine.sink_batchtopk_sae import (
    SinkBatchTopKTrainingSAE,
    SinkBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.validation import check_choice


@dataclass(kw_only=True)
class ReweightedBatchTopKTrainingSAEConfig(
    WeightedLossConfig, SinkBatchTopKTrainingSAEConfig
):
    """
    Configuration for training a ReweightedBatchTopKTrainingSAE.

    Args:
        k: latents kept a token, on average over the batch; may be a fraction.
        topk_threshold_lr: share of the newest batch in the running threshold.
        b_dec_init_method: "geometric_median", "mean" of the first batch, or "zeros".
        sink_rank: as in SinkTrainingSAEConfig; 0, the paper's way, drops outliers.
        decoder_init_norm: norm of the decoder rows at the start.
    """

    b_dec_init_method: BiasInit = "geometric_median"
    sink_rank: int = 0
    decoder_init_norm: float | None = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("b_dec_init_method", self.b_dec_init_method, BIAS_INITS)
        if not self.rescale_acts_by_decoder_norm:
            raise ValueError(
                "rescale_acts_by_decoder_norm=False is not supported: the control is "
                "compared with SAEs of unit decoder rows. Leave it at True."
            )

    @override
    @classmethod
    def architecture(cls) -> str:
        return "reweighted_batchtopk"


class ReweightedBatchTopKTrainingSAE(WeightedLoss, SinkBatchTopKTrainingSAE):
    """BatchTopK on the inner product with weighted tokens; saved as `jumprelu`."""

    cfg: ReweightedBatchTopKTrainingSAEConfig  # type: ignore[assignment]

    @override
    @torch.no_grad()
    def prepare_step(self, x: torch.Tensor) -> None:
        if self.n_batches_trained == 0:
            self.b_dec.copy_(bias_from(x, self.cfg.b_dec_init_method))
