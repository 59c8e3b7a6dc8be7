"""`sae-lens-cosine diagnose` and `compare`: from options to tables, JSON and HTML."""

import shutil
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from sae_lens_cosine.analysis.inputs import (
    EMBEDDED_TEXT,
    check_saes,
    read_inputs,
)
from sae_lens_cosine.analysis.report import render
from sae_lens_cosine.analysis.results import (
    PAIR_COLUMNS,
    Analysis,
    analysis_rows,
    pair_rows,
)
from sae_lens_cosine.analysis.run import analyse
from sae_lens_cosine.demo.rows import rows_table
from sae_lens_cosine.output_folder import check_output, move_into_place
from sae_lens_cosine.tables import read_texts

JSON, REPORT = "analysis.json", "report.html"


def run(
    saes: Sequence[str],
    model: str,
    out: Path,
    text: Path | None,
    text_column: str,
    tokens: int,
    context_size: int,
    overwrite: bool,
) -> None:
    """Analyse SAEs of one hook, and print tables.

    Args:
        saes: each ``PATH``, ``NAME=PATH``, or ``RELEASE:SAE_ID``.
        model: ``"demo"``, a folder, or a name.
        out: new folder for ``analysis.json`` and ``report.html``, which appears when
            both are complete.
        text: a file; by default held-out text from the package ``sae-probes``.
        text_column: in a table.
        tokens: of text to measure on.
        context_size: tokens of one forward pass.
        overwrite: replace an ``out`` of this command that holds nothing else.

    Raises:
        ValueError, TypeError, OSError: naming what is wrong; nothing was computed.
        ImportError: naming the extra that is missing.
    """
    check_output(out, (JSON, REPORT), overwrite)
    for package in ("sae_bench", "plotly"):
        if find_spec(package) is None:
            raise ImportError(
                f"This command needs {package}, which is not installed: "
                'pip install "sae-lens-cosine[demo]"'
            )
    # Here and not above: SAEBench takes seconds to import.
    from sae_lens_cosine.saebench.sources import load_model, load_saes, parse_sources

    loaded = load_saes(parse_sources(saes))
    hook_name = check_saes(loaded)
    texts = read_texts(text, text_column, tokens)
    inputs = read_inputs(
        loaded, hook_name, load_model(model), texts, tokens, context_size
    )
    analysis = analyse(inputs, EMBEDDED_TEXT if text is None else text.name)
    write(analysis, out, overwrite)
    show(analysis, out)


def write(analysis: Analysis, out: Path, overwrite: bool) -> None:
    """Write JSON and report to a temporary folder, and give it its name."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        (work / JSON).write_text(analysis.model_dump_json(), encoding="utf-8")
        (work / REPORT).write_text(render(analysis), encoding="utf-8")
        work.chmod(0o755)  # mkdtemp's is for the owner alone
        move_into_place(work, out, overwrite)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def show(analysis: Analysis, out: Path) -> None:
    """Print the tables, and where the files are."""
    console = Console()
    sinks = next(iter(analysis.arms.values())).reconstruction.sinks_only.n_tokens
    caption = (
        f"{analysis.settings.tokens:,} tokens of {analysis.settings.text}, of which "
        f"{sinks:,} are attention sinks."
    )
    title = f"Results at {analysis.settings.hook_name}"
    console.print(rows_table(title, analysis.arms, analysis_rows(analysis), caption))
    if analysis.pairs:
        title, caption = "Pairs of SAEs", "Q4: the longest quarter of ordinary tokens."
        rows = pair_rows(analysis.pairs)
        console.print(rows_table(title, PAIR_COLUMNS, rows, caption))
    console.print(f"Report: {out / REPORT}; numbers: {out / JSON}", soft_wrap=True)
