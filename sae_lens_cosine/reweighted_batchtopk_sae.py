"""`reweighted_batchtopk`: the inner product with a loss that weighs tokens by norm.

The baseline of the paper's falsification experiment: SAELens's BatchTopK, trained on
the same rows and from the same start as the cosine SAEs of this package.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE
from sae_lens.saes.sae import TrainStepInput, TrainStepOutput
from typing_extensions import override

from sae_lens_cosine.aux_loss import AuxLoss, AuxLossConfig
from sae_lens_cosine.initialization import BIAS_INITS, BiasInit, bias_from
from sae_lens_cosine.loss_weighting import WeightedLoss, WeightedLossConfig
from sae_lens_cosine.precision import KeepsPrecision
from sae_lens_cosine.running_threshold import (
    RunningThreshold,
    RunningThresholdConfig,
)
from sae_lens_cosine.sink_estimation import is_outlier
from sae_lens_cosine.validation import (
    check_activations,
    check_choice,
    check_k,
    check_normalization,
)


@dataclass(kw_only=True)
class ReweightedBatchTopKTrainingSAEConfig(
    WeightedLossConfig, AuxLossConfig, RunningThresholdConfig
):
    """
    Configuration for training a ReweightedBatchTopKTrainingSAE.

    Args:
        k: latents kept a token, on average over the batch; may be a fraction.
        topk_threshold_lr: share of the newest batch in the running threshold.
        b_dec_init_method: "geometric_median", "mean" of the first batch, or "zeros".
        outlier_norm_multiple: training tokens whose norm exceeds this many times the batch median are dropped; None keeps all.
        decoder_init_norm: norm of the decoder rows at the start.
    """

    b_dec_init_method: BiasInit = "geometric_median"
    outlier_norm_multiple: float | None = 10.0
    decoder_init_norm: float | None = 1.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.d_sae)
        check_choice("b_dec_init_method", self.b_dec_init_method, BIAS_INITS)
        check_normalization(self.normalize_activations)
        if not self.rescale_acts_by_decoder_norm:
            raise ValueError(
                "rescale_acts_by_decoder_norm=False is not supported: the control is "
                "compared with SAEs of unit decoder rows. Leave it at True."
            )
        if self.outlier_norm_multiple is not None and self.outlier_norm_multiple <= 1:
            raise ValueError(
                f"outlier_norm_multiple={self.outlier_norm_multiple} would drop "
                "ordinary tokens: use a number above 1 (the paper: 10), or None to "
                "keep all tokens."
            )

    @override
    @classmethod
    def architecture(cls) -> str:
        return "reweighted_batchtopk"


class ReweightedBatchTopKTrainingSAE(
    KeepsPrecision, WeightedLoss, AuxLoss, RunningThreshold, BatchTopKTrainingSAE
):
    """BatchTopK on the inner product with weighted tokens; saved as `jumprelu`."""

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        "topk_threshold": torch.float64,
        "n_batches_trained": torch.float64,
    }

    cfg: ReweightedBatchTopKTrainingSAEConfig  # type: ignore[assignment]
    n_batches_trained: torch.Tensor

    @override
    def initialize_weights(self) -> None:
        super().initialize_weights()
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        self.register_buffer("n_batches_trained", zero)

    @override
    def training_forward_pass(self, step_input: TrainStepInput) -> TrainStepOutput:
        """A training step on the rows that are not outliers.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows; nothing has
                changed then.
        """
        x = step_input.sae_in
        check_activations(x, self.cfg.d_in)
        if self.cfg.outlier_norm_multiple is not None:
            x = x[~is_outlier(x, self.cfg.outlier_norm_multiple)]
        if self.n_batches_trained == 0:
            with torch.no_grad():
                self.b_dec.copy_(bias_from(x, self.cfg.b_dec_init_method))
        output = super().training_forward_pass(replace(step_input, sae_in=x))
        self.n_batches_trained += 1
        return output

    @override
    def process_state_dict_for_saving_inference(
        self, state_dict: dict[str, Any]
    ) -> None:
        state_dict.pop("n_batches_trained")
        for key, value in state_dict.items():
            state_dict[key] = value.clone()  # the entries alias the live weights
        super().process_state_dict_for_saving_inference(state_dict)
