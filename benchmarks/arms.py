"""The arms of the comparisons: each differs from a neighbour in one thing.

All are trained with the same rows in the same order, schedule (`common.train`, that of
the demo), `k`, rate of the running threshold, and auxiliary loss. That loss is
SAELens's own, coefficient 1 without normalization: the best known setting of the
baseline. The recipe's 1/32 of a loss normalized by the residual's variance would be
next to nothing at these norms (about 180, see docs/architectures.md), and would leave
every arm but the baseline without revival of dead latents. The learning rate is far
above the paper's 5e-5, which is for 244,000 steps and not for 500.

Whether a token of outlying norm (10 times the batch's median) is trained on:

- unfiltered: `batchtopk`, SAELens's BatchTopK with its defaults, as one gets it;
- filtered: every other arm without sink latents, the controls included, as in the
  paper. The gap that a control may close is the one between `cosine_filtered` and
  `batchtopk_filtered`, so that it is never the filter that is compared;
- all tokens, sinks with latents of their own: `*_sinks`.

`reweighted_*` start from SAELens's weights and biases and differ from
`batchtopk_filtered` in the loss alone; `unit_rows` differs from `cosine_filtered` in
its exponent alone, frozen at 1. `batchtopk_3x` is `batchtopk_filtered` with three
times the latents. `cosine_from_half` is `cosine_filtered` with the exponent starting
at 0.5: Adam moves a parameter by about the learning rate a step, so in 500 steps an
exponent that starts at 0 could hardly pass 0.5 if it wanted to.
"""

from collections.abc import Callable
from functools import partial

from sae_lens import BatchTopKTrainingSAEConfig, TrainingSAEConfig

from sae_lens_cosine import (
    CosineBatchTopKTrainingSAEConfig,
    ReweightedBatchTopKTrainingSAEConfig,
    SinkBatchTopKTrainingSAEConfig,
)

K, D_SAE = 32, 2304

_reweighted = partial(
    ReweightedBatchTopKTrainingSAEConfig,
    # those of SAELens's own
    b_dec_init_method="zeros",
    decoder_init_norm=BatchTopKTrainingSAEConfig.decoder_init_norm,
)
_per_feature = partial(CosineBatchTopKTrainingSAEConfig, exponent_mode="per_feature")

ARMS: dict[str, Callable[..., TrainingSAEConfig]] = {
    "batchtopk": BatchTopKTrainingSAEConfig,
    "batchtopk_filtered": partial(SinkBatchTopKTrainingSAEConfig, sink_rank=0),
    "cosine_filtered": partial(CosineBatchTopKTrainingSAEConfig, sink_rank=0),
    "cosine_per_feature_filtered": partial(_per_feature, sink_rank=0),
    "reweighted_inverse_norm": partial(_reweighted, loss_weighting="inverse_norm"),
    "reweighted_inverse_norm_squared": partial(
        _reweighted, loss_weighting="inverse_norm_squared"
    ),
    "unit_rows": partial(
        CosineBatchTopKTrainingSAEConfig,
        sink_rank=0,
        initial_exponent=1.0,
        train_exponent=False,
    ),
    "batchtopk_sinks": SinkBatchTopKTrainingSAEConfig,
    "cosine_sinks": CosineBatchTopKTrainingSAEConfig,
    "cosine_per_feature_sinks": _per_feature,
    "cosine_from_half": partial(
        CosineBatchTopKTrainingSAEConfig, sink_rank=0, initial_exponent=0.5
    ),
    "batchtopk_3x": partial(SinkBatchTopKTrainingSAEConfig, sink_rank=0),
}

OUTLIERS = {
    arm: "trained on"
    if arm == "batchtopk"
    else "sink latents"
    if arm.endswith("_sinks")
    else "filtered"
    for arm in ARMS
}


def arm_config(arm: str, d_in: int) -> TrainingSAEConfig:
    d_sae = 3 * D_SAE if arm == "batchtopk_3x" else D_SAE
    return ARMS[arm](d_in=d_in, d_sae=d_sae, k=K, topk_threshold_lr=0.05)
