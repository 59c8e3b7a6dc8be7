"""SAEBench's LLM baseline: probes of the model's own channels, kept on disk."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig

from sae_lens_cosine.saebench.activations import PromptActivations, TokenizedTexts
from sae_lens_cosine.saebench.files import reading, write_atomically
from sae_lens_cosine.saebench.fingerprint import fingerprint, package_versions
from sae_lens_cosine.saebench.pooling import ChannelsAsLatents, Pooler
from sae_lens_cosine.saebench.prober import Prober
from sae_lens_cosine.saebench.results import Metrics, PerClass
from sae_lens_cosine.saebench.sinks import MaskedPrompts

Baseline = tuple[Metrics, PerClass]


def baselines(
    texts: TokenizedTexts,
    acts: PromptActivations,
    masks: Sequence[MaskedPrompts],
    config: SparseProbingEvalConfig,
    folder: Path,
    device: torch.device,
) -> list[Baseline]:
    """One baseline for each mask, read from ``folder`` or computed and written there.

    It is seeded for each data set, so that it does not depend on the others.

    Args:
        texts: the data set.
        acts: its activations.
        masks: ways of masking sinks.
        config: SAEBench's settings.
        folder: of the activations; files in it are named by a hash of the settings.
        device: where probes are trained.

    Raises:
        ValueError: if a file is damaged.
    """
    config = replace(config, dataset_names=[texts.name])
    versions = package_versions()
    paths = [
        folder / f"baseline_{fingerprint(mask.masking, asdict(config), versions)}.json"
        for mask in masks
    ]
    missing = [m for m, path in zip(masks, paths, strict=True) if not path.exists()]
    if missing:
        pooler = Pooler(
            ChannelsAsLatents(acts.acts.dtype),
            [texts],
            batch_size=config.sae_batch_size,
            device=device,
        )
        pooled = pooler.pool(texts.name, acts, missing)
        for mask, channels in zip(missing, pooled, strict=True):
            prober = Prober(config, repeats=1, device=device)
            prober.probe(texts.name, mask.rows, channels)
            found = prober.metrics[texts.name], prober.per_class[texts.name]
            text = json.dumps([_renamed(values) for values in found])
            path = paths[masks.index(mask)]
            write_atomically(path, lambda temporary, t=text: temporary.write_text(t))
    return [_read(path) for path in paths]


def _read(path: Path) -> Baseline:
    with reading(path, "delete it to compute it again"):
        metrics, per_class = json.loads(path.read_text())
        return metrics, per_class


def _renamed(values: dict) -> dict:
    """SAEBench's function calls everything that it probes ``sae``."""
    return {key.replace("sae_", "llm_", 1): value for key, value in values.items()}
