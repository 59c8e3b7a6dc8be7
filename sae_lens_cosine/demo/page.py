"""One self-contained HTML page: a table, plots that are drawn offline, settings."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import cycle
from types import ModuleType

from sae_lens_cosine.demo.plots import Plot
from sae_lens_cosine.demo.rows import Row

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Plotly's other buttons select points, or send the data to a server.
PLOT_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}


def plotly_graph_objects() -> ModuleType:
    """Plotly, which is optional.

    Raises:
        ImportError: naming the ``demo`` extra, if it is missing.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise ImportError(
            'The report needs plotly: pip install "sae-lens-cosine[demo]"'
        ) from error
    return go


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each SAE, the same in every plot."""
    return dict(zip(names, cycle(COLOURS), strict=False))


def render_page(
    title: str,
    note: str,
    heading: str,
    about: str,
    table: str,
    plots: Sequence[Plot],
    settings: Iterable[tuple[str, str]],
) -> str:
    """The whole page.

    Args:
        title: of the page.
        note: shown in a box below it.
        heading: of the table.
        about: a sentence above the table.
        table: from :func:`table_html`.
        plots: in the order of display.
        settings: names and values.
    """
    from plotly.offline import get_plotlyjs

    return PAGE.format(
        title=escape(title),
        note=escape(note),
        heading=escape(heading),
        about=escape(about),
        table=table,
        settings="\n".join(
            f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in settings
        ),
        plots="\n".join(_plot_html(plot) for plot in plots),
        plotlyjs=get_plotlyjs(),
    )


def table_html(
    rows: Iterable[Row], columns: Mapping[str, str], colours: Mapping[str, str]
) -> str:
    """Rows under their sections; ``columns`` are names, with what stands below.

    Columns in ``colours`` are marked as in the plots.
    """
    heads = ""
    for name, below in columns.items():
        mark = f'<i style="background:{colours[name]}"></i>' if name in colours else ""
        heads += (
            f'<th scope="col">{mark}{escape(name)}<small>{escape(below)}</small></th>'
        )
    lines = [f"<thead><tr><td></td>{heads}</tr></thead>"]
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(
                f'<tr><th scope="rowgroup" colspan="{len(columns) + 1}">'
                f"{escape(section)}</th></tr>"
            )
        cells = "".join(f"<td>{escape(value)}</td>" for value in row.values)
        lines.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    return "<table>" + "\n".join(lines) + "</table>"


def _plot_html(plot: Plot) -> str:
    body = "<p><em>Not measured in this run.</em></p>"
    if (figure := plot.figure) is not None:
        figure.update_layout(
            template="plotly_white",
            font={"family": "system-ui, sans-serif", "color": "#1a1a1a", "size": 13},
            legend={"orientation": "h", "y": 1.0, "yanchor": "bottom"},
            margin={"l": 64, "r": 16, "t": 64, "b": 48},
            showlegend=True,
            bargap=0.25,
        )
        body = figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            config=PLOT_CONFIG,
        )
    return (
        f"<section><h2>{escape(plot.title)}</h2>{body}"
        f"<p>{escape(plot.look_for)}</p></section>"
    )


# The policy makes the promise that nothing is fetched one that the browser keeps.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
 script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>
body {{ max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem; color: #1a1a1a;
  background: #fff; font: 1rem/1.55 system-ui, sans-serif; }}
h1, h2 {{ line-height: 1.25; }}
h2 {{ margin: 3rem 0 0.5rem; font-size: 1.3rem; }}
.note {{ padding: 0.75rem 1rem; border-left: 4px solid #E69F00; background: #fff8e8; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; min-width: 60%; font-variant-numeric: tabular-nums; }}
td, th {{ padding: 0.25rem 1rem 0.25rem 0; text-align: right; font-weight: 400; }}
thead th {{ font-weight: 600; vertical-align: bottom; }}
thead small {{ display: block; color: #555; font-weight: 400; }}
thead i {{ display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em;
  border-radius: 2px; }}
th[scope=row] {{ padding-left: 1rem; text-align: left; white-space: nowrap; }}
th[scope=rowgroup] {{ padding-top: 0.8rem; text-align: left; font-weight: 600;
  border-bottom: 1px solid #ddd; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.5rem; }}
dt {{ color: #555; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="note">{note}</p>
<h2>{heading}</h2>
<p>{about}</p>
<div class="wide">{table}</div>
<script>{plotlyjs}</script>
{plots}
<section><h2>Settings</h2><dl>{settings}</dl></section>
</body>
</html>
"""
