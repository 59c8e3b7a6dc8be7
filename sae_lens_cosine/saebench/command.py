"""`sae-lens-cosine probe`: what the command line adds to `run_sparse_probing`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from sae_lens_cosine.saebench.datasets import SUITES, DatasetSource, TextTable
from sae_lens_cosine.saebench.probing import SUMMARY, run_sparse_probing
from sae_lens_cosine.saebench.sinks import SinkMasking
from sae_lens_cosine.saebench.sources import parse_sources


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
    if suite is not None and suite not in SUITES:
        raise ValueError(f"--suite={suite}: choose one of {', '.join(SUITES)}.")
    chosen: list[DatasetSource] = [
        TextTable(name, text_column, label_column) if _is_table(name) else name
        for name in datasets
    ]
    if suite is None and not chosen:
        raise ValueError("Give --suite, --dataset, or both.")
    try:
        numbers = tuple(int(k) for k in ks.split(","))
    except ValueError as error:
        raise ValueError(f"--ks={ks}: give numbers with commas, as 1,2,5.") from error
    if out.is_file():
        raise FileExistsError(f"--out={out} is a file: give a folder.")
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
        seed=seed,
        force=force,
    )
    console = Console()
    for table in report.tables():
        console.print(table)
    console.print(
        f"Results in SAEBench's format: {out / 'sparse_probing'}; "
        f"summary: {out / SUMMARY}",
        soft_wrap=True,
    )


def _is_table(name: str) -> bool:
    return Path(name).suffix in (".csv", ".parquet", ".jsonl")
