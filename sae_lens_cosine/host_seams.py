"""Every private or mutable part of the hosts that this package touches, in one place.

What SAELens documents as its interface is not listed. What is here may move without
notice; `moved_seams` says what has, in words, and a test runs it.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

READ_IN = {"sae_lens": "6.54.12"}
"""The versions in which the seams were read, by package."""


@dataclass(frozen=True)
class Seam:
    """One such part.

    Args:
        module: where it lives.
        name: dotted, from the module.
        use: what for.
        parameters: names of its parameters, where it is called or overridden.
    """

    module: str
    name: str
    use: str
    parameters: tuple[str, ...] | None = None


LOADERS = "sae_lens.loading.pretrained_sae_loaders"
DIRECTORY = "sae_lens.loading.pretrained_saes_directory"
HF_LOADER = ("repo_id", "folder_name", "device", "force_download", "cfg_overrides")

SEAMS = (
    Seam(
        "sae_lens.registry",
        "SAE_CLASS_REGISTRY",
        "looked through for names that are taken before any is registered",
    ),
    Seam(
        "sae_lens.registry",
        "SAE_TRAINING_CLASS_REGISTRY",
        "looked through for names that are taken; recipes read fields of its configs",
    ),
    Seam(
        DIRECTORY,
        "get_pretrained_saes_directory",
        "the dict that it caches gets the published release",
        (),
    ),
    Seam(
        LOADERS,
        "NAMED_PRETRAINED_SAE_LOADERS",
        "gets the loader of the published release",
    ),
    Seam(
        LOADERS,
        "NAMED_PRETRAINED_SAE_CONFIG_GETTERS",
        "gets the config getter of the published release",
    ),
    Seam(
        LOADERS,
        "sae_lens_huggingface_loader",
        "our loader takes the same arguments",
        HF_LOADER,
    ),
    Seam(
        LOADERS,
        "sae_lens_disk_loader",
        "our converter takes the same arguments",
        ("path", "device", "cfg_overrides"),
    ),
    Seam(
        "sae_lens.training.sae_trainer",
        "SAETrainer",
        "replaced while the command line trains, by a trainer that saves on signals",
        ("cfg", "sae", "data_provider", "evaluator", "save_checkpoint_fn"),
    ),
    Seam(
        "sae_lens.training.sae_trainer",
        "SAETrainer.maybe_reset_sparsity",
        "overridden: `fit` starts every step with it",
        ("self",),
    ),
    Seam(
        "sae_lens.training._interruption",
        "InterruptedException",
        "raised, so that SAELens's runner stops as on its own signal handler",
    ),
    Seam(
        "sae_lens.llm_sae_training_runner",
        "_run_cli",
        "reached by running the module as __main__",
        ("args",),
    ),
    Seam(
        "sae_lens.saes.topk_sae",
        "act_times_W_dec",
        "decodes dense and sparse activations",
        ("feature_acts", "W_dec", "rescale_acts_by_decoder_norm"),
    ),
    Seam(
        "sae_lens.saes.topk_sae",
        "calculate_topk_aux_acts",
        "chooses the dead latents of the auxiliary loss",
        ("k_aux", "hidden_pre", "dead_neuron_mask"),
    ),
    Seam(
        "sae_lens.saes.abstopk_sae",
        "calculate_abstopk_aux_acts",
        "chooses them by magnitude",
        ("k_aux", "hidden_pre", "dead_neuron_mask"),
    ),
    Seam(
        "sae_lens.saes.topk_sae",
        "TopKTrainingSAE.calculate_topk_aux_loss",
        "overridden: finite, and with a normalisation",
        ("self", "sae_in", "sae_out", "hidden_pre", "dead_neuron_mask"),
    ),
    Seam(
        "sae_lens.saes.abstopk_sae",
        "AbsTopKTrainingSAE.calculate_abstopk_aux_loss",
        "overridden: finite, and with a normalisation",
        ("self", "sae_in", "sae_out", "hidden_pre", "dead_neuron_mask"),
    ),
    Seam(
        "sae_lens.saes.batchtopk_sae",
        "BatchTopKTrainingSAE.update_topk_threshold",
        "overridden: an average that is corrected for its start",
        ("self", "acts_topk"),
    ),
    Seam(
        "sae_lens.saes.matryoshka_batchtopk_sae",
        "MatryoshkaBatchTopKTrainingSAE._iterable_decode",
        "overridden: prefixes are decoded from unit rows",
        ("self", "feature_acts", "include_outer_loss"),
    ),
    Seam(
        "sae_lens.saes.matryoshka_batchtopk_sae",
        "MatryoshkaBatchTopKTrainingSAE.calculate_matryoshka_aux_loss",
        "overridden: finite, and with a normalisation",
        (
            "self",
            "sae_in",
            "sae_out",
            "feature_acts",
            "hidden_pre",
            "dead_neuron_mask",
        ),
    ),
    Seam(
        "sae_lens.saes.jumprelu_sae",
        "JumpReLU.forward",
        "applied to the score",
        ("x", "threshold", "bandwidth", "ste_to_input"),
    ),
)


def moved_seams(seams: tuple[Seam, ...] = SEAMS) -> list[str]:
    """What is no longer where, or as, this package expects it; empty if all is well."""
    moved = []
    for seam in seams:
        package = seam.module.split(".")[0]
        where = f"{seam.module}.{seam.name} (read in {package} {READ_IN[package]})"
        try:
            found: Any = importlib.import_module(seam.module)
            for part in seam.name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            moved.append(f"{where} is gone; it is {seam.use}.")
            continue
        if seam.parameters is not None:
            parameters = tuple(inspect.signature(found).parameters)
            if parameters != seam.parameters:
                moved.append(
                    f"{where} now takes {parameters}, not {seam.parameters}; it is "
                    f"{seam.use}."
                )
    return moved
