"""The demo's results as a table for the terminal and as one self-contained HTML page.

Both print the rows of :func:`sae_lens_cosine.demo.rows.summary_rows`.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sae_lens_cosine.demo.page import (
    colours_of,
    plotly_graph_objects,
    render_page,
    table_html,
)
from sae_lens_cosine.demo.plots import (
    exponent_plot,
    l0_plot,
    probing_plot,
    variance_plot,
)
from sae_lens_cosine.demo.results import ArmResults, Results
from sae_lens_cosine.demo.rows import (
    HEADING,
    NOT_A_BENCHMARK,
    setting_rows,
    summary_rows,
    terminal_table,
)

__all__ = ["render", "terminal_table", "write_report"]


def write_report(results: Mapping[str, Any], path: Path) -> None:
    """Write the page; a reader of ``path`` sees the old file or the whole new one.

    Args:
        results: as in ``results.json``, see :class:`.results.Results`.
        path: the HTML file, in an existing folder. It opens without a network.

    Raises:
        ImportError: naming the ``demo`` extra, if plotly is missing.
        pydantic.ValidationError: if ``results`` does not follow the schema.
    """
    page = render(Results.model_validate(results))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def render(results: Results) -> str:
    """The whole page as text."""
    go = plotly_graph_objects()
    from plotly.subplots import make_subplots

    arms = results.arms
    colours = colours_of(arms)
    return render_page(
        title=f"Cosine-scored SAEs on {results.settings.model}",
        note=NOT_A_BENCHMARK,
        heading=HEADING,
        about=about_sinks(arms.values()),
        table=table_html(
            summary_rows(results),
            {name: arm.architecture for name, arm in arms.items()},
            colours,
        ),
        plots=[
            variance_plot(arms, colours, go),
            l0_plot(arms, colours, go, results.settings.k),
            probing_plot(results, colours, go, make_subplots),
            exponent_plot(arms, colours, go),
        ],
        settings=setting_rows(results.settings),
    )


def about_sinks(arms: Iterable[ArmResults]) -> str:
    """One sentence that explains the word, with this run's numbers."""
    measured = (arm.reconstruction for arm in arms)
    rec = next((rec for rec in measured if rec is not None), None)
    text = (
        "An attention sink is a token, mostly the first of a text, whose activation "
        "vector is many times longer than the others"
    )
    if rec is None:
        return f"{text}."
    return (
        f"{text}: here, longer than {rec.sink_norm_limit:,.0f}, which holds for "
        f"{rec.sinks_only.n_tokens:,} of {rec.n_tokens:,} evaluated tokens."
    )
