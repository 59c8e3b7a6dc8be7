"""SAEBench's probing of one SAE after another, under one configuration."""

import random
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput
from sae_lens import SAE
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from sae_lens_cosine.saebench.activations import ActivationCache, TokenizedTexts
from sae_lens_cosine.saebench.fingerprint import fingerprint, fingerprint_sae
from sae_lens_cosine.saebench.handover import Hook
from sae_lens_cosine.saebench.host import quiet
from sae_lens_cosine.saebench.results import Metrics, PerClass, build_output

# Whose code decides the numbers: another version is another result.
_PACKAGES = ("sae-lens-cosine", "sae-bench", "sae-lens", "scikit-learn", "torch")


class _IdentityLatents:
    """Stands where SAEBench expects an SAE and returns the model's own channels.

    Probing it is SAEBench's LLM baseline, run by the same code as every SAE.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Prober:
    """SAEBench's per-data-set probing under one configuration."""

    def __init__(
        self,
        config: SparseProbingEvalConfig,
        model: HookedTransformer,
        cache: ActivationCache,
        texts: list[TokenizedTexts],
    ) -> None:
        self.config = config
        self.model = model
        self.cache = cache
        self.texts = texts
        self._baselines: dict[Path, tuple[Metrics, PerClass]] = {}

    def result_key(self, sae: SAE[Any], hook: Hook) -> str:
        """12 hex digits over all that the numbers of an SAE depend on."""
        activations = [self.cache.key(texts, hook) for texts in self.texts]
        versions = [version(package) for package in _PACKAGES]
        return fingerprint(
            fingerprint_sae(sae), activations, asdict(self.config), versions
        )[:12]

    def probe(
        self, name: str, key: str, sae: SAE[Any], hook: Hook, bar: "tqdm[Any]"
    ) -> SparseProbingEvalOutput:
        """Probe a formatted copy on all data sets and build SAEBench's result."""
        # All activations and baselines first. SAEBench computes missing ones between
        # seeding and probing, so that its numbers differ with the state of the cache.
        folders = [self.cache.warm(texts, hook) for texts in self.texts]
        baselines = [
            self._baseline(texts, hook, folder)
            for texts, folder in zip(self.texts, folders, strict=True)
        ]
        metrics: dict[str, Metrics] = {}
        per_class: dict[str, PerClass] = {}
        # Seeded once, before the first data set, as in `run_eval_single_sae`.
        self._seed()
        for texts, folder, (llm_metrics, llm_per_class) in zip(
            self.texts, folders, baselines, strict=True
        ):
            sae_metrics, sae_per_class = self._run(texts, sae, hook, folder)
            metrics[texts.name] = llm_metrics | sae_metrics
            per_class[texts.name] = llm_per_class | sae_per_class
            bar.update()
        return build_output(name, key, sae, self.config, metrics, per_class)

    def _baseline(
        self, texts: TokenizedTexts, hook: Hook, folder: Path
    ) -> tuple[Metrics, PerClass]:
        """Probes of the model's channels, once for all SAEs at one hook.

        Seeded for each data set, so that its baseline does not depend on the others.
        """
        if folder not in self._baselines:
            self._seed()
            identity = _IdentityLatents(self.model.cfg.dtype)
            metrics, per_class = self._run(texts, identity, hook, folder)
            self._baselines[folder] = (
                {k.replace("sae_", "llm_", 1): v for k, v in metrics.items()},
                {k.replace("sae_", "llm_", 1): v for k, v in per_class.items()},
            )
        return self._baselines[folder]

    def _run(
        self,
        texts: TokenizedTexts,
        sae: SAE[Any] | _IdentityLatents,
        hook: Hook,
        folder: Path,
    ) -> tuple[Metrics, PerClass]:
        with quiet():
            return saebench.run_eval_single_dataset(
                texts.name,
                self.config,
                sae,  # type: ignore[arg-type]
                self.model,
                hook.layer,
                hook.name,
                str(self.model.cfg.device),
                str(folder),
                save_activations=False,
            )

    def _seed(self) -> None:
        random.seed(self.config.random_seed)
        torch.manual_seed(self.config.random_seed)
