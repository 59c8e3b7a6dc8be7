"""SAEBench's LLM baseline: probes of the model's own channels, kept on disk."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig

from sae_lens_cosine.saebench.activations import PromptActivations
from sae_lens_cosine.saebench.files import write_atomically
from sae_lens_cosine.saebench.fingerprint import fingerprint, package_versions
from sae_lens_cosine.saebench.pooling import ChannelsAsLatents, mean_latents
from sae_lens_cosine.saebench.prober import Prober
from sae_lens_cosine.saebench.results import Metrics, PerClass
from sae_lens_cosine.saebench.sinks import MaskedPrompts

Baseline = tuple[Metrics, PerClass]


def baselines(
    dataset: str,
    acts: PromptActivations,
    masks: Sequence[MaskedPrompts],
    config: SparseProbingEvalConfig,
    folder: Path,
    device: torch.device,
) -> list[Baseline]:
    """One baseline for each mask, read from ``folder`` or computed and written there.

    It is seeded for each data set, so that it does not depend on the others.

    Args:
        dataset: name of the data set.
        acts: its activations.
        masks: ways of masking sinks.
        config: SAEBench's settings.
        folder: of the activations; files in it are named by a hash of the settings.
        device: where probes are trained.
    """
    config = replace(config, dataset_names=[dataset])
    versions = package_versions()
    paths = [
        folder / f"baseline_{fingerprint(mask.masking, asdict(config), versions)}.json"
        for mask in masks
    ]
    missing = [m for m, path in zip(masks, paths, strict=True) if not path.exists()]
    if missing:
        pooled = mean_latents(
            ChannelsAsLatents(acts.acts.dtype),
            acts,
            missing,
            batch_size=config.sae_batch_size,
            device=device,
        )
        for mask, channels in zip(missing, pooled, strict=True):
            prober = Prober(config, repeats=1, device=device)
            prober.probe(dataset, mask.rows, channels)
            text = json.dumps(
                [_renamed(prober.metrics[dataset]), _renamed(prober.per_class[dataset])]
            )
            path = paths[masks.index(mask)]
            write_atomically(path, lambda temporary, t=text: temporary.write_text(t))
    return [tuple(json.loads(path.read_text())) for path in paths]


def _renamed(values: dict) -> dict:
    """SAEBench's function calls everything that it probes ``sae``."""
    return {key.replace("sae_", "llm_", 1): value for key, value in values.items()}
