"""What the demo measures: the schema of ``results.json``."""

from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sae_lens import SAE

from sae_lens_cosine.evaluation import (
    ReconstructionMetrics,
)
from sae_lens_cosine.inference import CosineSAE
from sae_lens_cosine.loss_recovered import LossRecovered


class Settings(BaseModel):
    """How the run was made. Further keys are kept, and shown as they are."""

    model_config = ConfigDict(extra="allow")

    model: str
    layer: int
    hook_name: str
    training_tokens: int
    evaluation_tokens: int
    d_in: int
    d_sae: int
    k: int
    seed: int
    versions: dict[str, str]
    """Package name to version."""
    machine: str
    """For example ``2 CPU cores, 8 GiB``."""


class ArmResults(BaseModel):
    """One SAE. ``None`` or empty where something was not measured."""

    architecture: str
    reconstruction: ReconstructionMetrics | None = None
    loss: LossRecovered | None = None
    exponents: list[float] | float | None = None
    """One per ordinary latent, or the global one; None for an SAE that has none."""
    scale: float | None = None
    """``exp(b)`` of a cosine SAE, the mean over latents if there is one for each."""
    threshold: float | None = None
    probing: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Data set to k (``"1"``, ``"2"``, ``"5"``) to test accuracy, 0 to 1."""

    @property
    def mean_exponent(self) -> float | None:
        if isinstance(self.exponents, list):
            return fmean(self.exponents) if self.exponents else None
        return self.exponents


class Results(BaseModel):
    """The content of ``results.json``."""

    settings: Settings
    arms: dict[str, ArmResults] = Field(min_length=1)
    """By name, in the order of display."""

    @property
    def datasets(self) -> list[str]:
        """Probed data sets, in order of appearance."""
        return list(dict.fromkeys(d for arm in self.arms.values() for d in arm.probing))

    @property
    def probe_sizes(self) -> list[str]:
        """The probes' k, ascending."""
        sizes = {k for a in self.arms.values() for d in a.probing.values() for k in d}
        return sorted(sizes, key=int)

    def mean_probing(self, arm: ArmResults, k: str) -> float | None:
        """Mean accuracy at ``k``; None unless the arm has every data set, because
        means over different data sets cannot be compared."""
        found = [arm.probing.get(name, {}).get(k) for name in self.datasets]
        accuracies = [accuracy for accuracy in found if accuracy is not None]
        return fmean(accuracies) if len(accuracies) == len(found) > 0 else None


def learned_values(sae: SAE[Any]) -> dict[str, Any]:
    """Exponents, scale and threshold of an inference SAE, where it has them."""
    learned: dict[str, Any] = {}
    threshold = getattr(sae, "threshold", None)
    if threshold is not None:
        learned["threshold"] = threshold.max().item()  # 0 for reserved latents
    if isinstance(sae, CosineSAE):
        n_ordinary = sae.cfg.d_sae - len(sae.sink_latents)
        exponent = sae.exponent
        learned["exponents"] = (
            exponent[:n_ordinary] if exponent.ndim else exponent
        ).tolist()
        learned["scale"] = sae.W_enc[:, :n_ordinary].norm(dim=0).mean().item()
    return learned
