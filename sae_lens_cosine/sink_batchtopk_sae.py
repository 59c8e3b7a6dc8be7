"""`sink_batchtopk`: SAELens's BatchTopK with latents for attention sinks."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAE
from sae_lens.saes.jumprelu_sae import JumpReLUSAEConfig
from sae_lens.saes.sae import SAEConfig
from typing_extensions import override

from sae_lens_cosine.aux_loss import AuxLoss, AuxLossConfig
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAEConfig
from sae_lens_cosine.running_threshold import (
    RunningThreshold,
    RunningThresholdConfig,
)
from sae_lens_cosine.sink_training import SinkTrainingSAE, SinkTrainingSAEConfig
from sae_lens_cosine.sparse_step import Entries, sampled_product
from sae_lens_cosine.validation import check_k, check_normalization


@dataclass(kw_only=True)
class SinkBatchTopKTrainingSAEConfig(
    SinkTrainingSAEConfig, AuxLossConfig, RunningThresholdConfig
):
    """
    Configuration for training a SinkBatchTopKTrainingSAE; see SinkTrainingSAEConfig.

    Args:
        k: latents kept a token, on average over the batch; may be a fraction.
        decoder_init_norm: norm of the decoder rows at the start.
        use_sparse_activations: whether training steps follow the kept scores alone, as COO activations: the same step, several times faster.
    """

    use_sparse_activations: bool = True
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
        return CosineJumpReLUSAEConfig if self.sink_rank else JumpReLUSAEConfig


class SinkBatchTopKTrainingSAE(
    SinkTrainingSAE, AuxLoss, RunningThreshold, BatchTopKTrainingSAE
):
    """The inner-product baseline with the sink treatment of the cosine SAEs.

    It tells the share of the score in a difference from the share of the treatment.
    Saved as `cosine_jumprelu` with exponent 1, which is the inner product. With
    `sink_rank=0` it only drops outliers, and is saved as SAELens's `jumprelu`.
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
        norm = self.row_norm * self.competes

        def score(at: Entries | None) -> torch.Tensor:
            if at is None:
                return (x_c @ self.W_enc + self.b_enc) * norm
            product = sampled_product(x_c, self.W_enc.T, at)
            columns = at.columns
            return (product + self.b_enc.index_select(0, columns)) * norm[columns]

        return self.select(score, sink_pre)

    def scores_of(
        self, latents: torch.Tensor, sae_in: torch.Tensor, hidden_pre: torch.Tensor
    ) -> torch.Tensor:
        """``hidden_pre`` of some latents with its gradient, ``[n, n_latents]``."""
        if not self.is_sparse_step:
            return hidden_pre.index_select(-1, latents)
        W_enc = self.W_enc.index_select(1, latents)
        x_c, _ = self.read(sae_in)
        return (x_c @ W_enc + self.b_enc[latents]) * self.row_norm[latents]

    @property
    def row_norm(self) -> torch.Tensor:
        """What scores are multiplied by, ``[d_sae]``: decoder norms, or 1."""
        if self.cfg.rescale_acts_by_decoder_norm:
            return self.W_dec.norm(dim=-1)
        return torch.ones_like(self.b_enc)

    @override
    def decode(self, feature_acts: torch.Tensor) -> torch.Tensor:
        """Reconstruction ``[..., d_in]`` of ``feature_acts``, ``[..., d_sae]``."""
        W_dec = self.W_dec
        if self.cfg.rescale_acts_by_decoder_norm:
            W_dec = self.unit_W_dec
        elif (signed := self.signed_sink_directions) is not None:
            W_dec = torch.cat([W_dec[: -len(signed)], signed.to(W_dec.dtype)])
        sae_out = self.weighted_rows(feature_acts, W_dec) + self.b_dec
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
        if self.cfg.sink_rank:
            state_dict["exponent"] = torch.ones((), device=self.device)
        self.export_sinks(state_dict)
        state_dict["threshold"][self.sink_latents] = 0
