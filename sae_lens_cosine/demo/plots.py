"""The report's figures; plotly's modules come as arguments, since it is optional."""

import math
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

import numpy as np

from sae_lens_cosine.demo.results import ArmResults, Results
from sae_lens_cosine.demo.rows import number
from sae_lens_cosine.evaluation import GroupMetrics

LOWEST_BAR = -1.0  # an explained variance of -184 would flatten every other bar


class Plot(NamedTuple):
    """A titled figure; ``figure`` is None if the run did not measure it."""

    title: str
    look_for: str
    figure: Any | None


def variance_plot(
    arms: Mapping[str, ArmResults], colours: Mapping[str, str], go: Any
) -> Plot:
    """Explained variance by quartile of the ordinary norms, and on sinks."""
    figure = bars_by_norm(arms, lambda g: g.explained_variance, colours, go)
    lowest = min((v for bar in figure.data for v in bar.y if v is not None), default=0)
    low = lowest - 0.2 if lowest < 0 else 0
    figure.update_yaxes(title="explained variance", range=[low, 1.12])
    return Plot(
        "How well are tokens rebuilt?",
        "Higher is better, 1 being a perfect copy and 0 no better than guessing the "
        "average token: look whether an SAE does as well on the longest ordinary "
        "tokens as on the shortest, and whether it rebuilds the attention sinks (bars "
        f"are cut at {number(LOWEST_BAR, 0)}, the number is the true value).",
        figure if figure.data else None,
    )


def bars_by_norm(
    arms: Mapping[str, ArmResults],
    read: Callable[[GroupMetrics], float | None],
    colours: Mapping[str, str],
    go: Any,
) -> Any:
    """A figure of one number by quartile of the ordinary norms, and on sinks."""
    figure = go.Figure()
    groups = ["Q1: shortest", "Q2", "Q3", "Q4: longest", "Attention sinks"]
    for name, arm in arms.items():
        if (rec := arm.reconstruction) is None:
            continue
        values = [read(group) for group in (*rec.norm_quartiles, rec.sinks_only)]
        text = [f"{_label(v)} ▼" if _cut(v) else _label(v) for v in values]
        shown = [LOWEST_BAR if _cut(v) else v for v in values]
        add_bars(figure, go, name, groups, shown, text, colours[name])
    figure.update_xaxes(title="tokens, by the length of their activation vector")
    return figure


def l0_plot(
    arms: Mapping[str, ArmResults],
    colours: Mapping[str, str],
    go: Any,
    k: int | None = None,
) -> Plot:
    """Active latents on ordinary tokens and on sinks, on a log axis."""
    figure = go.Figure()
    for name, arm in arms.items():
        if (rec := arm.reconstruction) is None:
            continue
        values = [rec.sinks_excluded.l0, rec.sinks_only.l0]
        shown = [v or None for v in values]  # a log axis has no 0
        text = [number(v, 0 if v is not None and v >= 100 else 1) for v in values]
        groups = ["Ordinary tokens", "Attention sinks"]
        add_bars(figure, go, name, groups, shown, text, colours[name])
    counts = [v for bars in figure.data for v in bars.y if v is not None] + [k or 1]
    span = [math.floor(min(0.0, math.log10(min(counts)))), math.log10(3 * max(counts))]
    figure.update_yaxes(title="active latents per token", type="log", range=span)
    figure.update_yaxes(dtick=1)
    look_for = (
        "Look for a tall bar over the attention sinks: an SAE that spends hundreds of "
        "latents on such a token describes its length rather than its meaning"
    )
    if k is not None:
        look_for += (
            " (the dashed line is the number of latents the SAEs were trained to use)"
        )
        figure.add_hline(k, line_dash="dash", line_color="#444")
        # Plotly wants an annotation's place on a log axis as the exponent.
        figure.add_annotation(
            text=f"k = {k}",
            x=1,
            y=math.log10(k),
            xref="paper",
            xanchor="right",
            yanchor="bottom",
            showarrow=False,
        )
    return Plot(
        "How many latents does a token cost?",
        f"{look_for}.",
        figure if figure.data else None,
    )


def probing_plot(
    results: Results, colours: Mapping[str, str], go: Any, make_subplots: Any
) -> Plot:
    """Accuracy by data set, and the mean; one panel per k."""
    title = "Can few latents tell what a text is about?"
    look_for = (
        "Each bar is the share of unseen texts that a classifier gets right when it "
        "sees only the k most telling latents: look which SAE needs the fewest, above "
        "all at k = 1, where a single latent has to stand for the whole idea."
    )
    sizes = results.probe_sizes
    if not sizes:
        return Plot(title, look_for, None)
    figure = make_subplots(rows=len(sizes), shared_xaxes=True, vertical_spacing=0.06)
    datasets = [*map(escape, results.datasets), "<b>mean</b>"]
    for name, arm in results.arms.items():
        for panel, k in enumerate(sizes, start=1):
            values = [arm.probing.get(d, {}).get(k) for d in results.datasets]
            values.append(results.mean_probing(arm, k))
            add_bars(
                figure,
                go,
                name,
                datasets,
                values,
                [_label(v) for v in values],
                colours[name],
                place={"row": panel, "col": 1},
                showlegend=panel == 1,
                legendgroup=escape(name),
            )
    figure.update_yaxes(range=[0, 1.12])
    for panel, k in enumerate(sizes, start=1):
        figure.update_yaxes(title=f"accuracy, k = {k}", row=panel)
    figure.update_layout(height=140 + 230 * len(sizes))
    return Plot(title, look_for, figure)


def exponent_plot(
    arms: Mapping[str, ArmResults], colours: Mapping[str, str], go: Any
) -> Plot:
    """Histogram of per-feature exponents; a global exponent is a vertical line."""
    figure = go.Figure()
    exponents: dict[str, np.ndarray] = {}
    per_feature: set[str] = set()
    for name, arm in arms.items():
        values = np.array([np.nan if arm.exponents is None else arm.exponents], float)
        if (values := values[np.isfinite(values)]).size:
            exponents[name] = values
            if isinstance(arm.exponents, list):
                per_feature.add(name)
    # 0 is always in view: the reader is asked how far from it the exponents are.
    everything = np.concatenate([*exponents.values(), [0.0]])
    low, high = float(everything.min()), float(everything.max())
    margin = 0.05 * (high - low) or 0.05
    edges = np.linspace(low - margin, high + margin, 61)
    top = 0.0
    for name, values in exponents.items():
        if name in per_feature:
            share = np.histogram(values, edges)[0] / len(values)
            top = max(top, float(share.max()))
            figure.add_bar(
                x=(edges[:-1] + edges[1:]) / 2,
                y=share,
                width=edges[1] - edges[0],
                name=escape(name),
                marker_color=colours[name],
                opacity=0.65,
            )
    top = 1.05 * top or 1.0
    for name, values in exponents.items():
        if name not in per_feature:
            label = f"{escape(name)} (one for all: {number(values[0])})"
            line = {"color": colours[name], "width": 3}
            x, y = [values[0], values[0]], [0, top]
            figure.add_scatter(x=x, y=y, mode="lines", name=label, line=line)
    for at, what in ((0, "cosine, a = 0"), (1, "inner product, a = 1")):
        if edges[0] <= at <= edges[-1]:
            figure.add_vline(
                at, line_dash="dot", line_color="#444", annotation_text=what
            )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(visible=bool(per_feature))
    figure.update_xaxes(title="learned exponent a", range=[edges[0], edges[-1]])
    figure.update_yaxes(title="share of latents", range=[0, top], tickformat=".0%")
    return Plot(
        "How much does length count?",
        "Look where training has moved the exponents from their start at 0: at 0 a "
        "latent's score ignores how long the activation vector is, at 1 it grows in "
        "proportion, as in an ordinary SAE.",
        figure if exponents else None,
    )


def add_bars(
    figure: Any,
    go: Any,
    name: str,
    x: list[str],
    y: list[float | None],
    text: list[str],
    colour: str,
    place: Mapping[str, int] | None = None,
    **style: Any,
) -> None:
    """Add one arm's bars, with their values as text."""
    bars = go.Bar(
        name=escape(name),
        x=x,
        y=y,
        text=text,
        textposition="outside",
        textangle=0,
        constraintext="none",  # else a label shrinks until it cannot be read
        cliponaxis=False,
        marker_color=colour,
        hovertemplate="%{x}: %{text}",
        **style,
    )
    figure.add_trace(bars, **(place or {}))


def _cut(value: float | None) -> bool:
    return value is not None and value < LOWEST_BAR


def _label(value: float | None) -> str:
    return "" if value is None else number(value, 2)
