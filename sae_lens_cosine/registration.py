"""Make SAELens know the architectures of this package by name."""

from dataclasses import dataclass
from typing import Any

from sae_lens import registry
from sae_lens.saes.sae import SAE, SAEConfig, TrainingSAE, TrainingSAEConfig
from typing_extensions import override

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
from sae_lens_cosine.jumprelu_sae import CosineJumpReLUSAE, CosineJumpReLUSAEConfig
from sae_lens_cosine.jumprelu_training_sae import (
    CosineJumpReLUTrainingSAE,
    CosineJumpReLUTrainingSAEConfig,
)
from sae_lens_cosine.matryoshka_batchtopk_sae import (
    CosineMatryoshkaBatchTopKTrainingSAE,
    CosineMatryoshkaBatchTopKTrainingSAEConfig,
)
from sae_lens_cosine.published import register_release
from sae_lens_cosine.reweighted_batchtopk_sae import (
    ReweightedBatchTopKTrainingSAE,
    ReweightedBatchTopKTrainingSAEConfig,
)
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


@dataclass
class TrainingOnlySAEConfig(SAEConfig):
    """Stands for a training-only architecture among the inference ones, and refuses.

    SAELens looks up the architecture of a training checkpoint among the inference
    classes when it is opened with `SAE.load_from_disk`; without this entry the user
    sees a bare `KeyError`.
    """

    @override
    def __post_init__(self) -> None:
        raise ValueError(
            "This is a training checkpoint, and its architecture is one for training "
            "only. Open it with TrainingSAE.load_from_disk(path), write "
            "sae.save_inference_model(other_path), and load that."
        )

    @override
    @classmethod
    def architecture(cls) -> str:
        return "training_only"


INFERENCE_CLASSES: dict[str, tuple[type[SAE[Any]], type[SAEConfig]]] = {
    "cosine_jumprelu": (CosineJumpReLUSAE, CosineJumpReLUSAEConfig),
    "cosine_topk": (CosineTopKSAE, CosineTopKSAEConfig),
    "cosine_abstopk": (CosineAbsTopKSAE, CosineAbsTopKSAEConfig),
    "cosine_batchtopk": (SAE, TrainingOnlySAEConfig),
    "sink_batchtopk": (SAE, TrainingOnlySAEConfig),
    "cosine_matryoshka_batchtopk": (SAE, TrainingOnlySAEConfig),
    "reweighted_batchtopk": (SAE, TrainingOnlySAEConfig),
}
TRAINING_CLASSES: dict[str, tuple[type[TrainingSAE[Any]], type[TrainingSAEConfig]]] = {
    "cosine_batchtopk": (CosineBatchTopKTrainingSAE, CosineBatchTopKTrainingSAEConfig),
    "cosine_topk": (CosineTopKTrainingSAE, CosineTopKTrainingSAEConfig),
    "sink_batchtopk": (SinkBatchTopKTrainingSAE, SinkBatchTopKTrainingSAEConfig),
    "cosine_abstopk": (CosineAbsTopKTrainingSAE, CosineAbsTopKTrainingSAEConfig),
    "cosine_jumprelu": (CosineJumpReLUTrainingSAE, CosineJumpReLUTrainingSAEConfig),
    "cosine_matryoshka_batchtopk": (
        CosineMatryoshkaBatchTopKTrainingSAE,
        CosineMatryoshkaBatchTopKTrainingSAEConfig,
    ),
    "reweighted_batchtopk": (
        ReweightedBatchTopKTrainingSAE,
        ReweightedBatchTopKTrainingSAEConfig,
    ),
}


def register() -> None:
    """Register every architecture and release; calling it again changes nothing.

    Raises:
        ValueError: if another package holds one of the names; nothing is registered
            then.
    """
    pairs = (
        (registry.SAE_CLASS_REGISTRY, INFERENCE_CLASSES),
        (registry.SAE_TRAINING_CLASS_REGISTRY, TRAINING_CLASSES),
    )
    for known, ours in pairs:
        for name, classes in ours.items():
            if name in known and known[name] != classes:
                holder = known[name][0]
                raise ValueError(
                    f"The SAELens architecture {name!r} is already registered by "
                    f"{holder.__module__}.{holder.__qualname__}: two packages cannot "
                    "share a name, so uninstall one or do not import both."
                )
    for name, classes in INFERENCE_CLASSES.items():
        if name not in registry.SAE_CLASS_REGISTRY:
            registry.register_sae_class(name, *classes)
    for name, classes in TRAINING_CLASSES.items():
        if name not in registry.SAE_TRAINING_CLASS_REGISTRY:
            registry.register_sae_training_class(name, *classes)
    register_release()
