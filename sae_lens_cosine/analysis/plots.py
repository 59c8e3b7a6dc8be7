"""Figures of `diagnose` and `compare`; plotly comes as an argument: it is optional."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from sae_lens_cosine.analysis.results import Diagnosis, Pair
from sae_lens_cosine.demo.plots import Plot, add_bars, bars_by_norm
from sae_lens_cosine.demo.rows import percent

QUARTILES = ["Q1: shortest", "Q2", "Q3", "Q4: longest"]
MAX_POINTS = 3000
"""More points would make the page slow and show nothing new."""

Arms = Mapping[str, Diagnosis]
Colours = Mapping[str, str]


def norm_ratio_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Length of the copy over that of the original."""
    figure = bars_by_norm(arms, lambda group: group.norm_ratio, colours, go)
    figure.add_hline(1, line_dash="dash", line_color="#444")
    figure.update_yaxes(title="length of the copy / length of the token")
    return Plot(
        "Are the copies as long as the tokens?",
        "Look for bars far from the dashed line at 1: above it the SAE blows tokens up, "
        "below it the copy is shrunken, and a spliced-in SAE passes that on to the model.",
        figure,
    )


def firing_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Firings of all latents together, by quartile of the norms."""
    figure = go.Figure()
    for name, arm in arms.items():
        features = arm.features
        counts = np.nansum(features.firing_shares * features.firings[:, None], axis=0)
        if not counts.sum():
            continue
        shares = (counts / counts.sum()).tolist()
        text = [percent(share) for share in shares]
        add_bars(figure, go, name, QUARTILES, shares, text, colours[name])
    figure.add_hline(0.25, line_dash="dash", line_color="#444")
    figure.update_yaxes(title="share of all firings", tickformat=".0%")
    figure.update_xaxes(title="ordinary tokens, by the length of their vector")
    return Plot(
        "On which tokens do latents fire?",
        "Each quarter holds equally many tokens, so look how far a bar is from the "
        "dashed line at 25 %: an SAE whose latents answer to meaning alone is near it, "
        "one whose latents answer to length leans to the right.",
        figure if figure.data else None,
    )


def detector_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Histogram over latents: how much of each one's firings is in the top quarter."""
    values = {
        name: arm.features.firing_shares[arm.features.ordinary_latents, 3]
        for name, arm in arms.items()
    }
    figure = _histograms(values, np.linspace(0, 1, 41), colours, go)
    figure.add_vline(0.25, line_dash="dash", line_color="#444")
    figure.update_xaxes(
        title="a latent's firings on the longest quarter of tokens", tickformat=".0%"
    )
    return Plot(
        "Are there latents that detect length?",
        "Look for latents at the right edge: they fire on hardly anything but long "
        "tokens and say little about meaning, while the dashed line marks 25 %, where "
        "length does not matter.",
        figure if figure.data else None,
    )


def density_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Mean exponent of latents, in groups of equal density."""
    figure = go.Figure()
    for name, arm in arms.items():
        if (found := arm.exponent_density) is None or not found.n_latents:
            continue
        figure.add_scatter(
            x=found.densities,
            y=found.exponents,
            mode="lines+markers",
            name=escape(name),
            marker_color=colours[name],
        )
    figure.update_xaxes(title="share of tokens on which a latent fires", type="log")
    figure.update_yaxes(title="mean learned exponent")
    return Plot(
        "Which latents let length count?",
        "Each point is a tenth of the latents, from the rarest to the most frequent: "
        "look whether the line rises, which means that frequent latents grow more with "
        "a token's length than rare ones (SAEs with one exponent for all have no line).",
        figure if figure.data else None,
    )


def geometry_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Histogram over latents: the cosine with the nearest other direction."""
    values = {name: arm.geometry.max_cosine for name, arm in arms.items()}
    known = np.concatenate([v[~np.isnan(v)] for v in values.values()])
    low = float(known.min()) if known.size else 0.0
    figure = _histograms(values, np.linspace(min(low, 0.0), 1, 41), colours, go)
    figure.update_xaxes(title="cosine of a latent's direction with the nearest other")
    return Plot(
        "Are directions used twice?",
        "Look for latents near 1, whose direction another latent has as well: the "
        "further to the left an SAE's latents are, the better it tells directions apart.",
        figure if figure.data else None,
    )


def other_score_plot(arms: Arms, colours: Colours, go: Any) -> Plot:
    """Explained variance of ordinary tokens, read with the own and the other score."""
    figure = go.Figure()
    for name, arm in arms.items():
        if (other := arm.other_score) is None:
            continue
        groups = [
            metrics.sinks_excluded.explained_variance
            for metrics in (arm.reconstruction, other.reconstruction)
        ]
        text = ["" if value is None else f"{value:.2f}" for value in groups]
        labels = ["with its own score", "with the other score"]
        add_bars(figure, go, name, labels, groups, text, colours[name])
    figure.update_yaxes(title="explained variance, ordinary tokens")
    return Plot(
        "What if the score is changed after training?",
        "The same SAE is read with the other score (inner product instead of cosine, or "
        "the reverse) at the same number of latents: look how much is lost, which says "
        "how much of the difference lies in the score and not in the weights.",
        figure if figure.data else None,
    )


def matched_plot(pairs: Sequence[Pair], go: Any) -> Plot:
    """Share of features with a counterpart, of every pair of SAEs."""
    figure = go.Figure()
    labels = [escape(f"{pair.first} / {pair.second}") for pair in pairs]
    for label, colour, shares in (
        ("of the first", "#0072B2", [p.matching.matched_share_a for p in pairs]),
        ("of the second", "#E69F00", [p.matching.matched_share_b for p in pairs]),
    ):
        text = [percent(share) for share in shares]
        add_bars(figure, go, label, labels, shares, text, colour)
    figure.update_yaxes(title="share of latents that fire", tickformat=".0%")
    return Plot(
        "How many features do two SAEs share?",
        "A latent is shared if the other SAE has one with nearly the same direction "
        "that fires on the same tokens: look how much is left that only one of the two "
        "has found.",
        figure if figure.data else None,
    )


def agreement_plot(pairs: Sequence[Pair], go: Any) -> Plot:
    """Decoder cosine and correlation of matched latents."""
    figure = go.Figure()
    for pair in pairs:
        found = pair.matching
        step = -(-len(found.latents_a) // MAX_POINTS) or 1
        if not len(found.latents_a):
            continue
        figure.add_scatter(
            x=found.decoder_cosines[::step],
            y=found.correlations[::step],
            mode="markers",
            name=escape(f"{pair.first} / {pair.second}"),
            marker={"size": 5, "opacity": 0.5},
            text=[
                f"{a} and {b}"
                for a, b in zip(
                    found.latents_a[::step], found.latents_b[::step], strict=True
                )
            ],
            hovertemplate="latents %{text}<br>cosine %{x:.3f}, correlation %{y:.3f}",
        )
    figure.update_xaxes(title="cosine of the directions")
    figure.update_yaxes(title="correlation of the activations")
    return Plot(
        "How alike are shared features?",
        "Each point is a pair of latents: look whether the points crowd in the upper "
        "right corner, where two SAEs have found the same direction and use it on the "
        "same tokens.",
        figure if figure.data else None,
    )


def _histograms(
    values: Mapping[str, np.ndarray], edges: np.ndarray, colours: Colours, go: Any
) -> Any:
    """One histogram a SAE, of the values that are defined, as shares of latents."""
    figure = go.Figure()
    for name, column in values.items():
        known = column[~np.isnan(column)]
        if not known.size:
            continue
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=np.histogram(known, edges)[0] / known.size,
            width=edges[1] - edges[0],
            name=escape(name),
            marker_color=colours[name],
            opacity=0.65,
        )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(title="share of latents", tickformat=".0%")
    return figure
