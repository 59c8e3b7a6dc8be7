"""Means, spreads and paired differences of probing accuracies.

The interval of a difference comes from a paired bootstrap: both SAEs are scored on
the same resampled test prompts and, if the probes were repeated, on the same resampled
repeats (which differ in the probes' training prompts and random numbers).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev

import numpy as np
from pydantic import BaseModel, ConfigDict

from sae_lens_cosine.saebench.prober import UNTESTED, Answers

RESAMPLES = 2000
CONFIDENCE = 0.95


class Accuracy(BaseModel):
    """A probing accuracy over repeats."""

    model_config = ConfigDict(frozen=True)

    mean: float
    std: float | None
    """Standard deviation between repeats; None with a single one."""


class Difference(BaseModel):
    """An accuracy minus another, with its 95% interval."""

    model_config = ConfigDict(frozen=True)

    mean: float
    low: float
    high: float

    @property
    def is_one(self) -> bool:
        """Whether the interval excludes zero. Otherwise no difference was shown."""
        return self.low > 0 or self.high < 0


class PairedDifference(BaseModel):
    """Accuracy of ``first`` minus that of ``second``."""

    model_config = ConfigDict(frozen=True)

    first: str
    second: str
    mean: Difference
    """Over the data sets."""
    by_dataset: dict[str, Difference]


def accuracies(answers: np.ndarray) -> Accuracy:
    """Accuracy, the mean over classes, of ``[repeats, classes, prompts]`` answers."""
    tested = answers != UNTESTED
    by_class = ((answers == 1) & tested).sum(-1) / tested.sum(-1)
    return summarize(by_class.mean(-1).tolist())


def summarize(values: Sequence[float]) -> Accuracy:
    """Mean and spread of one value per repeat."""
    return Accuracy(mean=fmean(values), std=stdev(values) if len(values) > 1 else None)


def mean_accuracy(answers: Answers, k: int) -> Accuracy:
    """Over data sets first, then over repeats."""
    by_repeat = [
        [
            accuracies(by_k[k][repeat : repeat + 1]).mean
            for repeat in range(len(by_k[k]))
        ]
        for by_k in answers.by_dataset.values()
    ]
    return summarize(np.mean(by_repeat, axis=0).tolist())


def paired_differences(
    answers: Mapping[str, Answers], k: int, seed: int = 0
) -> list[PairedDifference]:
    """Differences of every two SAEs, on each data set and in the mean over them.

    Args:
        answers: by SAE; all probed on the same prompts.
        k: of the probes.
        seed: of the resampling.
    """
    draws: dict[str, dict[str, np.ndarray]] = {name: {} for name in answers}
    points: dict[str, dict[str, float]] = {name: {} for name in answers}
    datasets = list(next(iter(answers.values())).by_dataset) if answers else []
    for number, dataset in enumerate(datasets):
        n_repeats, _, n_prompts = (
            next(iter(answers.values())).by_dataset[dataset][k].shape
        )
        rng = np.random.default_rng([seed, number])
        prompts, repeats = (
            rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T.astype(np.float32)
            for n in (n_prompts, n_repeats)
        )
        for name in answers:
            found = answers[name].by_dataset[dataset][k]
            draws[name][dataset] = _resampled(found, prompts, repeats)
            points[name][dataset] = accuracies(found).mean
    pairs = []
    for first, second in combinations(answers, 2):
        by_dataset = {
            d: _interval(
                points[first][d] - points[second][d], draws[first][d] - draws[second][d]
            )
            for d in datasets
        }
        mean = _interval(
            fmean(difference.mean for difference in by_dataset.values()),
            np.mean([draws[first][d] - draws[second][d] for d in datasets], axis=0),
        )
        pairs.append(
            PairedDifference(
                first=first, second=second, mean=mean, by_dataset=by_dataset
            )
        )
    return pairs


def _resampled(
    answers: np.ndarray, prompts: np.ndarray, repeats: np.ndarray
) -> np.ndarray:
    """Accuracy under each resampling, ``[resamples]``.

    Args:
        answers: ``[repeats, classes, prompts]``.
        prompts: how often each prompt is drawn, ``[prompts, resamples]``.
        repeats: how often each repeat is drawn, ``[repeats, resamples]``.
    """
    tested = (answers != UNTESTED).astype(np.float32) @ prompts
    right = (answers == 1).astype(np.float32) @ prompts
    # A class of a few prompts may not be drawn at all: it says nothing then.
    share = np.divide(right, tested, out=np.full_like(right, np.nan), where=tested > 0)
    by_repeat = np.nanmean(share, axis=1)  # [repeats, resamples]
    return (by_repeat * repeats).sum(0) / len(answers)


def _interval(mean: float, draws: np.ndarray) -> Difference:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Difference(mean=mean, low=float(low), high=float(high))
