"""A run of sparse probing in one object: SAEBench's results, and what they show."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text
from sae_bench.evals.sparse_probing.eval_output import SparseProbingEvalOutput

from sae_lens_cosine.saebench.fingerprint import fingerprint
from sae_lens_cosine.saebench.prober import Answers
from sae_lens_cosine.saebench.results import NOTES
from sae_lens_cosine.saebench.sinks import SinkMasking
from sae_lens_cosine.saebench.statistics import (
    Accuracy,
    PairedDifference,
    accuracies,
    mean_accuracy,
    paired_differences,
)


class Scores(BaseModel):
    """One SAE's probes with one k."""

    model_config = ConfigDict(frozen=True)

    mean: Accuracy
    """Over the data sets."""
    by_dataset: dict[str, Accuracy]
    llm: float
    """The same probe on the model's own channels, the mean over data sets."""


class Column(BaseModel):
    """All SAEs under one way of masking sinks."""

    model_config = ConfigDict(frozen=True)

    scores: dict[str, dict[int, Scores]]
    """SAE -> k."""
    differences: dict[int, list[PairedDifference]]
    """k -> pairs of SAEs that read the same hook."""


class ProbingSummary(BaseModel):
    """What a run found; the content of ``probing_summary_<key>.json``."""

    model_config = ConfigDict(frozen=True)

    model: str
    mask_sinks: SinkMasking
    seed: int
    probe_seeds: int
    datasets: dict[str, dict[str, dict[str, Any]]]
    """Masking -> data set -> rows of each class, dropped prompts, share of tokens
    masked; at the first SAE's hook."""
    columns: dict[SinkMasking, Column]


class ProbingReport(Mapping[str, SparseProbingEvalOutput]):
    """SAE's name -> SAEBench's result under the masking that was asked for.

    Args:
        outputs: masking -> SAE -> SAEBench's result; ``"none"`` is always there.
        answers: likewise, what the probes answered.
        mask_sinks: the masking that was asked for.
        probe_seeds: repeats of the probes.
    """

    def __init__(
        self,
        outputs: Mapping[SinkMasking, Mapping[str, SparseProbingEvalOutput]],
        answers: Mapping[SinkMasking, Mapping[str, Answers]],
        mask_sinks: SinkMasking,
        probe_seeds: int,
    ) -> None:
        self.outputs = outputs
        first = next(iter(outputs[mask_sinks].values()))
        self._asked_for = outputs[mask_sinks]
        self.summary = ProbingSummary(
            model=first.eval_config.model_name,
            mask_sinks=mask_sinks,
            seed=first.eval_config.random_seed,
            probe_seeds=probe_seeds,
            datasets={
                masking: _notes(next(iter(by_sae.values())))["datasets"]
                for masking, by_sae in outputs.items()
            },
            columns={m: _column(outputs[m], answers[m]) for m in outputs},
        )

    def __getitem__(self, name: str) -> SparseProbingEvalOutput:
        return self._asked_for[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked_for)

    def __len__(self) -> int:
        return len(self._asked_for)

    @property
    def summary_filename(self) -> str:
        """With a hash of the SAEs' names and results, so that calls with other SAEs or
        settings may share a folder."""
        results = {
            masking: [(name, str(found.sae_lens_id)) for name, found in by_sae.items()]
            for masking, by_sae in self.outputs.items()
        }
        return f"probing_summary_{fingerprint(results)[:12]}.json"

    def tables(self) -> list[Table]:
        """Accuracies, and (with two SAEs or more) differences, for the terminal."""
        tables = [_accuracy_table(self.summary)]
        if any(c.differences for c in self.summary.columns.values()) and len(self) > 1:
            tables.append(_difference_table(self.summary))
        return tables


def _notes(output: SparseProbingEvalOutput) -> dict[str, Any]:
    return output.eval_result_unstructured[NOTES]  # type: ignore[index]


def _column(
    outputs: Mapping[str, SparseProbingEvalOutput], answers: Mapping[str, Answers]
) -> Column:
    ks = next(iter(outputs.values())).eval_config.k_values
    scores = {
        name: {
            k: Scores(
                mean=mean_accuracy(answers[name], k),
                by_dataset={
                    dataset: accuracies(by_k[k])
                    for dataset, by_k in answers[name].by_dataset.items()
                },
                llm=getattr(
                    output.eval_result_metrics.llm, f"llm_top_{k}_test_accuracy"
                ),
            )
            for k in ks
        }
        for name, output in outputs.items()
    }
    by_hook: dict[str, dict[str, Answers]] = {}
    for name, output in outputs.items():
        by_hook.setdefault(_notes(output)["hook"], {})[name] = answers[name]
    differences = {
        k: [d for group in by_hook.values() for d in paired_differences(group, k)]
        for k in ks
    }
    return Column(scores=scores, differences=differences)


def _accuracy_table(summary: ProbingSummary) -> Table:
    repeats = f", {summary.probe_seeds} seeds" if summary.probe_seeds > 1 else ""
    table = Table(
        title=f"Sparse probing: test accuracy on {summary.model}{repeats}",
        caption=_caption(summary),
        box=SIMPLE,
    )
    table.add_column("SAE")
    table.add_column("k", justify="right")
    for masking in summary.columns:
        table.add_column(_heading(masking), justify="right", no_wrap=True)
        table.add_column("LLM", justify="right", style="dim", no_wrap=True)
    first = next(iter(summary.columns.values()))
    for name, by_k in first.scores.items():
        table.add_section()
        for k in by_k:
            cells = []
            for column in summary.columns.values():
                scores = column.scores[name][k]
                cells += [_accuracy(scores.mean), f"{scores.llm:.3f}"]
            table.add_row(Text(name), str(k), *cells)
    return table


def _difference_table(summary: ProbingSummary) -> Table:
    table = Table(
        title="Differences, with 95% intervals of a paired bootstrap",
        caption="A difference is one only where its interval excludes zero (*).",
        box=SIMPLE,
    )
    table.add_column("SAEs")
    table.add_column("k", justify="right")
    for masking in summary.columns:
        table.add_column(_heading(masking), justify="right", no_wrap=True)
    columns = list(summary.columns.values())
    for k, pairs in columns[0].differences.items():
        for number, pair in enumerate(pairs):
            cells = []
            for column in columns:
                d = column.differences[k][number].mean
                star = "*" if d.is_one else " "
                cells.append(f"{d.mean:+.3f} ({d.low:+.3f}, {d.high:+.3f}){star}")
            label = Text(f"{pair.first} \N{MINUS SIGN} {pair.second}")
            table.add_row(label, str(k), *cells)
    return table


def _heading(masking: SinkMasking) -> str:
    return "all tokens" if masking == "none" else "sinks masked"


def _caption(summary: ProbingSummary) -> str:
    caption = (
        "LLM: the same probe on the model's own channels. Rows of a class: "
        f"{_rows(summary, 'train')} train, {_rows(summary, 'test')} test."
    )
    if summary.mask_sinks == "none":
        return caption
    masked = summary.datasets[summary.mask_sinks].values()
    share = sum(dataset["masked_share"] for dataset in masked) / len(masked)
    return f"{caption} Masked ({summary.mask_sinks}): {100 * share:.1f}% of tokens."


def _rows(summary: ProbingSummary, split: str) -> str:
    """Of the smallest and the largest class of all data sets."""
    sizes = [
        size
        for dataset in summary.datasets[summary.mask_sinks].values()
        for size in dataset["rows"][split].values()
    ]
    fewest, most = min(sizes), max(sizes)
    return str(most) if fewest == most else f"{fewest} to {most}"


def _accuracy(accuracy: Accuracy) -> str:
    spread = "" if accuracy.std is None else f" \N{PLUS-MINUS SIGN} {accuracy.std:.3f}"
    return f"{accuracy.mean:.3f}{spread}"
