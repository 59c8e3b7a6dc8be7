"""What a user of the demo can choose, and the SAEs that follow from it."""

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from sae_lens import BatchTopKTrainingSAEConfig, TrainingSAEConfig

from sae_lens_cosine.batchtopk_sae import CosineBatchTopKTrainingSAEConfig

TRAIN_BATCH = 1024

ARMS: dict[str, Callable[..., TrainingSAEConfig]] = {
    # SAELens's own, the baseline
    "batchtopk": BatchTopKTrainingSAEConfig,
    # as in the paper, which drops outliers from training
    "cosine_global": lambda **shared: CosineBatchTopKTrainingSAEConfig(
        sink_rank=0, **shared
    ),
    "cosine_per_feature": lambda **shared: CosineBatchTopKTrainingSAEConfig(
        sink_rank=0, exponent_mode="per_feature", **shared
    ),
    # this package's default
    "cosine_sinks": CosineBatchTopKTrainingSAEConfig,
}


class DemoOptions(BaseModel):
    """What a user can choose; checked before anything is loaded or written."""

    model_config = ConfigDict(frozen=True)

    tokens: int = Field(default=150_000, ge=10 * TRAIN_BATCH, le=2_000_000)
    layer: int = Field(default=15, ge=0, le=29)
    d_sae: int = Field(default=2304, ge=32)
    k: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0)
    arms: tuple[str, ...] = tuple(ARMS)

    @field_validator("arms")
    @classmethod
    def _known(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [arm for arm in arms if arm not in ARMS]
        if unknown or not arms or len(set(arms)) < len(arms):
            raise ValueError(
                f"name at least one of {', '.join(ARMS)}, each once, with commas"
            )
        return arms

    @model_validator(mode="after")
    def _enough_latents(self) -> "DemoOptions":
        if self.k > self.d_sae:
            raise ValueError(f"k={self.k} is more than d_sae={self.d_sae}")
        return self

    @property
    def hook_name(self) -> str:
        return f"blocks.{self.layer}.hook_resid_post"

    def sae_configs(self, d_in: int) -> dict[str, TrainingSAEConfig]:
        """One config an arm, equal in all that the architectures share."""
        # SAELens's average of the threshold would still be a fifth short after so few
        # steps, and its SAE far denser than k; all arms get the faster rate.
        shared = {"d_in": d_in, "d_sae": self.d_sae, "k": self.k}
        return {arm: ARMS[arm](topk_threshold_lr=0.05, **shared) for arm in self.arms}
