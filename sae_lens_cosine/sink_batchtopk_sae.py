"""`sink_batchtopk`: SAELens's BatchTopK with latents for attention sinks."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE
from sae_lens.saes.sae import SAEConfig
from sae_lens.saes.topk_sae import act_times_W_dec
from typing_extensions import override

from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAEConfig
from sae_lens_cosine.running_threshold import (
    RunningThreshold,
    RunningThresholdConfig,
)
from sae_lens_cosine.sink_training import SinkTrainingSAE, SinkTrainingSAEConfig
from sae_lens_cosine.validation import check_k, check_normalization


@dataclass(kw_only=True)
class SinkBatchTopKTrainingSAEConfig(SinkTrainingSAEConfig, RunningThresholdConfig):
    """
    Configuration for training a SinkBatchTopKTrainingSAE; see SinkTrainingSAEConfig.

    Args:
        k: latents kept a token, on average over the batch; may be a fraction.
        decoder_init_norm: norm of the decoder rows at the start.
    """

    exponent_mode: ClassVar[str] = "global"  # read into the inference config

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.d_sae)
        check_normalization(self.normalize_activations)

    @override
    @classmethod
    def architecture(cls) -> str:
        return "sink_batchtopk"

    @override
    def get_inference_config_class(self) -> type[SAEConfig]:
        return CosineJumpReLUSAEConfig


class SinkBatchTopKTrainingSAE(RunningThreshold, SinkTrainingSAE, BatchTopKTrainingSAE):
    """The inner-product baseline with the sink treatment of the cosine SAEs.

    It tells the share of the score in a difference from the share of the treatment;
    `sink_rank=0` only drops outliers. Saved as `cosine_jumprelu` with exponent 1,
    which is the inner product.
    """

    precision_floors: ClassVar[dict[str, torch.dtype]] = {
        **SinkTrainingSAE.precision_floors,
        "topk_threshold": torch.float64,
    }

    cfg: SinkBatchTopKTrainingSAEConfig  # type: ignore[assignment]

    @override
    def encode_with_hidden_pre(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``feature_acts`` and ``hidden_pre``, both ``[..., d_sae]``.

        ``hidden_pre`` is 0 for latents reserved for sinks.

        Raises:
            ValueError: on a wrong width, or on NaN or infinite rows.
        """
        x_c, sink_pre = self.read(x)
        hidden_pre = self.hook_sae_acts_pre(x_c @ self.W_enc + self.b_enc)
        if self.cfg.rescale_acts_by_decoder_norm:
            hidden_pre = hidden_pre * (self.W_dec.norm(dim=-1) * self.competes)
        elif sink_pre is not None:
            hidden_pre = hidden_pre * self.competes
        acts = self.activate(hidden_pre, sink_pre)
        return self.hook_sae_acts_post(acts), hidden_pre

    @override
    def decode(self, feature_acts: torch.Tensor) -> torch.Tensor:
        """Reconstruction ``[..., d_in]`` of ``feature_acts``, ``[..., d_sae]``."""
        W_dec = self.decoder_rows(self.W_dec)
        rescale = self.cfg.rescale_acts_by_decoder_norm
        sae_out = act_times_W_dec(feature_acts, W_dec, rescale) + self.b_dec
        sae_out = self.run_time_activation_norm_fn_out(self.hook_sae_recons(sae_out))
        return self.reshape_fn_out(sae_out, self.d_head)

    @override
    @torch.no_grad()
    def process_state_dict_for_saving_inference(
        self, state_dict: dict[str, Any]
    ) -> None:
        for key, tensor in state_dict.items():
            state_dict[key] = tensor.clone()  # entries alias the live weights
        super().process_state_dict_for_saving_inference(state_dict)
        state_dict["exponent"] = torch.ones((), device=self.device)
        self.export_sinks(state_dict)
        state_dict["threshold"][self.sink_latents] = 0
