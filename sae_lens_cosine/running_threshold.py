"""The threshold that a BatchTopK SAE of this package is saved with."""

from abc import ABC
from dataclasses import dataclass
from typing import Any

import torch
from sae_lens.saes.batchtopk_sae import BatchTopKTrainingSAEConfig
from sae_lens.saes.sae import TrainingSAE
from typing_extensions import override

from sae_lens_cosine.selection import BatchTopK


@dataclass(kw_only=True)
class RunningThresholdConfig(BatchTopKTrainingSAEConfig):
    """
    Configuration of the running threshold.

    Args:
        topk_threshold_lr: share of the newest batch in the running threshold.
        threshold_start_step: batches during which the threshold just follows the newest batch, before it is averaged.
    """

    threshold_start_step: int = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.topk_threshold_lr <= 1:
            raise ValueError(
                f"topk_threshold_lr={self.topk_threshold_lr} must be above 0 and at "
                "most 1: it is the newest batch's share in an average."
            )
        if self.threshold_start_step < 0:
            raise ValueError(
                f"threshold_start_step={self.threshold_start_step} must not be negative."
            )


class RunningThreshold(TrainingSAE[Any], ABC):
    """Goes before a BatchTopK class: its threshold is a mean of the batches seen.

    Not itself a BatchTopK class, which would put that one before the class that
    chooses the rows of a step.
    """

    cfg: Any
    topk_threshold: torch.Tensor
    n_batches_trained: torch.Tensor

    @override
    def get_activation_fn(self) -> BatchTopK:
        return BatchTopK(self.cfg.k)

    @torch.no_grad()
    def update_topk_threshold(self, acts_topk: torch.Tensor) -> None:
        """Average the smallest selected activation over the batches so far.

        The running average is corrected for its start as Adam's moments are. SAELens's
        starts at zero and is a third short after 100 batches, so that a short run is
        saved several times denser than k.
        """
        # A sink's third coefficient can be tiny, and would become the minimum.
        n_reserved = len(getattr(self, "sink_latents", []))
        n_ordinary = self.cfg.d_sae - n_reserved
        if acts_topk.is_sparse:
            acts = acts_topk.coalesce()
            ordinary = acts.values()[acts.indices()[-1] < n_ordinary]
        else:
            ordinary = acts_topk[..., :n_ordinary]
        positive = ordinary[ordinary > 0]
        if positive.numel() == 0:
            return
        lr = self.cfg.topk_threshold_lr
        n = (self.n_batches_trained - self.cfg.threshold_start_step).clamp(min=0)
        rate = lr / (1 - (1 - lr) ** (n + 1))
        lowest = positive.min().to(self.topk_threshold.dtype)
        self.topk_threshold.lerp_(lowest, rate)
