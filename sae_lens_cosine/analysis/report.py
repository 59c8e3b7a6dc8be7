"""The HTML report of `diagnose` and `compare`: one file that opens without a network."""

from sae_lens_cosine.analysis import plots
from sae_lens_cosine.analysis.results import (
    PAIR_COLUMNS,
    Analysis,
    analysis_rows,
    pair_rows,
)
from sae_lens_cosine.demo.page import (
    colours_of,
    plotly_graph_objects,
    render_page,
    table_html,
)
from sae_lens_cosine.demo.plots import Plot, exponent_plot, l0_plot, variance_plot
from sae_lens_cosine.demo.report import about_sinks
from sae_lens_cosine.demo.rows import setting_rows

NOTE = (
    "A sparse autoencoder (SAE) rewrites each activation vector of a language model as "
    "a few active latents out of many. The vectors differ in length (norm) as well as "
    "in direction; this report shows what the length does to the latents. Ordinary "
    "tokens are split into quarters by length, Q1 the shortest and Q4 the longest."
)


def render(analysis: Analysis) -> str:
    """The whole page as text.

    Raises:
        ImportError: naming the ``demo`` extra, if plotly is missing.
    """
    go = plotly_graph_objects()
    arms = analysis.arms
    colours = colours_of(arms)
    tables = table_html(
        analysis_rows(analysis),
        {name: arm.architecture for name, arm in arms.items()},
        colours,
    )
    figures: list[Plot] = [
        variance_plot(arms, colours, go),
        plots.norm_ratio_plot(arms, colours, go),
        l0_plot(arms, colours, go),
        plots.firing_plot(arms, colours, go),
        plots.detector_plot(arms, colours, go),
        exponent_plot(arms, colours, go),
        plots.density_plot(arms, colours, go),
        plots.other_score_plot(arms, colours, go),
        plots.geometry_plot(arms, colours, go),
    ]
    if analysis.pairs:
        tables += table_html(pair_rows(analysis.pairs), PAIR_COLUMNS, {})
        figures += [
            plots.matched_plot(analysis.pairs, go),
            plots.agreement_plot(analysis.pairs, go),
        ]
    return render_page(
        title=f"SAEs at {analysis.settings.hook_name} of {analysis.settings.model}",
        note=NOTE,
        heading=f"Results on {analysis.settings.text}",
        about=about_sinks(arms.values()),
        table=tables,
        plots=figures,
        settings=setting_rows(analysis.settings),
    )
