"""`sae-lens-cosine probe` and `core`: what the command line adds to the functions."""

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sae_lens_cosine.output_folder import check_writable
from sae_lens_cosine.saebench.core_eval import core_table, run_core
from sae_lens_cosine.saebench.datasets import (
    SUITES,
    DatasetSource,
    TextTable,
)
from sae_lens_cosine.saebench.probing import run_sparse_probing
from sae_lens_cosine.saebench.sae_probes_eval import EVAL, run_sae_probes
from sae_lens_cosine.saebench.sinks import SinkMasking
from sae_lens_cosine.saebench.sources import parse_sources
from sae_lens_cosine.tables import READERS, read_texts

SAE_PROBES = "sae_probes"
"""The suite of SAEBench's second eval."""

TRAIN_ROWS, TEST_ROWS, CONTEXT_SIZE = 4000, 1000, 128
"""Defaults of the command line."""


def probe(
    saes: Sequence[str],
    model: str,
    suite: str | None,
    datasets: Sequence[str],
    out: Path,
    mask_sinks: SinkMasking,
    include_sink_latents: bool,
    probe_seeds: int,
    ks: str,
    train_rows: int,
    test_rows: int,
    context_size: int,
    seed: int,
    text_column: str,
    label_column: str,
    activations: Path | None,
    force: bool,
) -> None:
    """Probe, and print tables.

    Args:
        saes: each ``PATH``, ``NAME=PATH``, or ``RELEASE:SAE_ID``.
        ks: with commas.

    The others are those of :func:`.run_sparse_probing` and :class:`.TextTable`.

    Raises:
        ValueError: naming the option that is wrong.
    """
    if suite is not None and suite not in (*SUITES, SAE_PROBES):
        known = ", ".join((*SUITES, SAE_PROBES))
        raise ValueError(f"--suite={suite}: choose one of {known}.")
    chosen: list[DatasetSource] = [
        TextTable(name, text_column, label_column) if _is_table(name) else name
        for name in datasets
    ]
    if suite is None and not chosen:
        raise ValueError("Give --suite, --dataset, or both.")
    numbers = _numbers(ks)
    check_writable(f"--out={out}", out)
    if activations is not None and not activations.is_dir():  # a full one is only read
        check_writable(f"--activations={activations}", activations)
    if suite == SAE_PROBES:
        asked = {
            "--mask-sinks": mask_sinks != "none",
            "--include-sink-latents": include_sink_latents,
            "--probe-seeds": probe_seeds != 1,
            "--train-rows": train_rows != TRAIN_ROWS,
            "--test-rows": test_rows != TEST_ROWS,
            "--context-size": context_size != CONTEXT_SIZE,
        }
        if not_there := [option for option, is_set in asked.items() if is_set]:
            raise ValueError(
                f"{', '.join(not_there)}: --suite={SAE_PROBES} has no such option. "
                "Its probes read the last token of a prompt once, on sae-probes' own "
                "rows; repeat it with another --seed."
            )
        _probe_last_tokens(
            saes, model, datasets, out, numbers, seed, activations, force
        )
        return
    report = run_sparse_probing(
        parse_sources(saes),
        model=model,
        datasets=[*([suite] if suite else []), *chosen],
        output=out,
        artifacts_dir=activations,
        mask_sinks=mask_sinks,
        include_sink_latents=include_sink_latents,
        probe_seeds=probe_seeds,
        ks=numbers,
        train_rows=train_rows,
        test_rows=test_rows,
        context_size=context_size,
        seed=seed,
        force=force,
    )
    console = Console()
    for table in report.tables():
        console.print(table)
    console.print(
        f"Results in SAEBench's format: {out / 'sparse_probing'}; "
        f"summary: {out / report.summary_filename}",
        soft_wrap=True,
    )


def _probe_last_tokens(
    saes: Sequence[str],
    model: str,
    datasets: Sequence[str],
    out: Path,
    ks: Sequence[int],
    seed: int,
    activations: Path | None,
    force: bool,
) -> None:
    found = run_sae_probes(
        parse_sources(saes),
        model=model,
        output=out,
        datasets=datasets or None,
        ks=ks,
        seed=seed,
        artifacts_dir=activations,
        force=force,
    )
    tasks = next(iter(found.values())).eval_config.dataset_names
    table = Table(title=f"Last token, tasks: {len(tasks)}", box=SIMPLE)
    table.add_column("SAE")
    for k in ks:
        table.add_column(f"k = {k}", justify="right")
    for name, output in found.items():
        by_k = output.sae_metrics_by_k or {}
        table.add_row(Text(name), *(f"{by_k[k]['test_accuracy']:.3f}" for k in ks))
    console = Console()
    console.print(table)
    console.print(f"Results in SAEBench's format: {out / EVAL}", soft_wrap=True)


def core(
    saes: Sequence[str],
    model: str,
    out: Path,
    text: Path | None,
    text_column: str,
    contexts: int,
    context_size: int,
    force: bool,
) -> None:
    """SAEBench's core eval, and a table with our figures beside it.

    Args:
        saes: as for :func:`probe`.
        text: a text or a table of texts; by default the demo's evaluation texts, which
            no SAE of the demo was trained on.

    The others are those of :func:`.run_core`.

    Raises:
        ValueError: naming the option that is wrong.
    """
    named = parse_sources(saes)
    check_writable(f"--out={out}", out)
    texts = read_texts(text, text_column, contexts * context_size)
    found = run_core(
        named,
        model=model,
        texts=texts,
        output=out,
        contexts=contexts,
        context_size=context_size,
        force=force,
    )
    console = Console()
    console.print(core_table(found))
    console.print(f"Results in SAEBench's format: {out / 'core'}", soft_wrap=True)


def _numbers(ks: str) -> tuple[int, ...]:
    try:
        return tuple(int(k) for k in ks.split(","))
    except ValueError as error:
        raise ValueError(f"--ks={ks}: give numbers with commas, as 1,2,5.") from error


def _is_table(name: str) -> bool:
    return Path(name).suffix in READERS
