"""SAEBench's probing of pooled latents, data set after data set, over repeats."""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sae_bench.evals.sparse_probing import main as saebench
from sae_bench.evals.sparse_probing.eval_config import SparseProbingEvalConfig

from sae_lens_cosine.saebench.activations import Rows
from sae_lens_cosine.saebench.host import quiet
from sae_lens_cosine.saebench.pooling import Lookup
from sae_lens_cosine.saebench.recording import Recorder
from sae_lens_cosine.saebench.results import Metrics, PerClass

SUBSAMPLE = 0.8
"""Share of each class's training prompts that repeats after the first draw."""

UNTESTED = -1
"""In an array of answers: the probe was not tested on this prompt."""


@dataclass
class Answers:
    """What the probes of one SAE answered, for paired comparisons with another's."""

    by_dataset: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)
    """Data set -> k -> int8 ``[repeats, classes, test prompts]``: 1 right, 0 wrong, -1
    where the probe was not tested on the prompt."""

    def save(self, path: Path) -> None:
        """Write as a compressed NumPy archive."""
        arrays = {
            f"{k} {dataset}": answers
            for dataset, by_k in self.by_dataset.items()
            for k, answers in by_k.items()
        }
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> "Answers":
        """Read what :meth:`save` wrote."""
        answers = cls()
        with np.load(path) as archive:
            for name in archive.files:
                k, dataset = name.split(" ", 1)
                answers.by_dataset.setdefault(dataset, {})[int(k)] = archive[name]
        return answers


class Prober:
    """Probes of one SAE (or of the model's channels) under one configuration.

    The first repeat is SAEBench's own run: seeded once, then one data set after the
    other. Every further repeat ``r`` is seeded with ``seed + r`` and trains on
    another :data:`SUBSAMPLE` of the prompts, the same for every SAE.

    Args:
        config: SAEBench's settings.
        repeats: number of runs, at least 1.
        device: where SAEBench trains the probe on all latents.
    """

    def __init__(
        self, config: SparseProbingEvalConfig, repeats: int, device: torch.device
    ) -> None:
        self.config = config
        self.device = device
        self.metrics: dict[str, Metrics] = {}
        self.per_class: dict[str, PerClass] = {}
        self.answers = Answers()
        seeds = range(config.random_seed, config.random_seed + repeats)
        # Each repeat goes on with its own random numbers from data set to data set.
        self._states = [torch.Generator().manual_seed(s).get_state() for s in seeds]

    def probe(self, dataset: str, rows: Rows, pooled: torch.Tensor) -> None:
        """Probe one data set.

        Args:
            dataset: its name.
            rows: prompts of each split and class.
            pooled: mean latents ``[prompts, latents]``.

        Raises:
            ValueError: if a prompt to be used has NaN or infinite latents.
        """
        used = torch.cat([p for split in rows.values() for p in split.values()])
        if not pooled[used].isfinite().all():
            raise ValueError(
                f"Data set {dataset!r}: the mean latents of "
                f"{int((~pooled[used].isfinite().all(-1)).sum())} prompts are not "
                "finite. Is the SAE sound in this dtype?"
            )
        answers: list[dict[int, np.ndarray]] = []
        for repeat in range(len(self._states)):
            chosen = rows if repeat == 0 else self._subsample(rows, dataset, repeat)
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._states[repeat])
                metrics, per_class, correct = self._run(dataset, chosen, pooled)
                self._states[repeat] = torch.get_rng_state()
            answers.append(correct)
            if repeat == 0:
                self.metrics[dataset], self.per_class[dataset] = metrics, per_class
        self.answers.by_dataset[dataset] = {
            k: np.stack([correct[k] for correct in answers])
            for k in self.config.k_values
        }

    def _subsample(self, rows: Rows, dataset: str, repeat: int) -> Rows:
        order = random.Random(f"{self.config.random_seed}/{repeat}/{dataset}")
        train = {}
        for label, prompts in rows["train"].items():
            size = max(1, round(SUBSAMPLE * len(prompts)))
            train[label] = prompts[sorted(order.sample(range(len(prompts)), size))]
        return {**rows, "train": train}

    def _run(
        self, dataset: str, rows: Rows, pooled: torch.Tensor
    ) -> tuple[Metrics, PerClass, dict[int, np.ndarray]]:
        """SAEBench's ``run_eval_single_dataset`` on a file of prompt numbers.

        It loads "activations" and lets the "SAE" encode and pool them: here the
        numbers of prompts (from 1, because it takes 0 for masked), looked up.
        """
        recorder = Recorder()
        with tempfile.TemporaryDirectory() as folder, quiet():
            numbers = {
                split: {
                    label: (prompts + 1)[:, None, None].to(self.device)
                    for label, prompts in by_label.items()
                }
                for split, by_label in rows.items()
            }
            path = Path(folder) / f"{dataset}_activations.pt".replace("/", "_")
            torch.save({**numbers, "llm_results": {}}, path)
            with recorder.listening():
                metrics, per_class = saebench.run_eval_single_dataset(
                    dataset,
                    self.config,
                    Lookup(pooled.to(self.device)),  # type: ignore[arg-type]
                    None,  # type: ignore[arg-type] # it has no activations to compute
                    0,
                    "",
                    str(self.device),
                    folder,
                    save_activations=False,
                )
        sizes = [len(prompts) for prompts in rows["test"].values()]
        return metrics, per_class, _answers(recorder, self.config.k_values, sizes)


def _answers(
    recorder: Recorder, ks: Sequence[int], test_sizes: Sequence[int]
) -> dict[int, np.ndarray]:
    """``k -> [classes, test prompts]`` from probes trained for each k and class."""
    tested = iter(recorder.tested)
    answers = {}
    for k in ks:
        answers[k] = np.full((len(test_sizes), sum(test_sizes)), UNTESTED, np.int8)
        for answers_of_class in answers[k]:
            prompts, right = next(tested)
            answers_of_class[prompts.numpy()] = right.numpy()
    return answers
