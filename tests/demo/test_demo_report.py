"""The report and the table: true to the results, complete, safe and self-contained."""

# ruff: noqa: RUF001 - the page has real minus signs and dashes
import builtins
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from sae_lens_cosine.demo import plots, report
from sae_lens_cosine.demo.report import render, terminal_table, write_report
from sae_lens_cosine.demo.results import Results
from sae_lens_cosine.demo.rows import number, setting_rows, summary_rows

pytest.importorskip("plotly")
import plotly.graph_objects as go
from plotly.subplots import make_subplots

HEADINGS = [
    "How well are tokens rebuilt?",
    "How many latents does a token cost?",
    "Can few latents tell what a text is about?",
    "How much does length count?",
]
EVIL = "<img src=x onerror=alert(1)></script>"


def group(ev: float | None, l0: float | None, n: int = 10, **kw: Any) -> dict[str, Any]:
    return {
        "n_tokens": n,
        "token_share": n / 100,
        "explained_variance": ev,
        "norm_ratio": 0.9,
        "cosine": 0.8,
        "l0": l0,
        "l0_without_sink_latents": l0,
        **kw,
    }


def arm(**kw: Any) -> dict[str, Any]:
    full = {
        "architecture": "cosine_batchtopk",
        "reconstruction": {
            "all_tokens": group(0.5, 33.0),
            "sinks_excluded": group(0.8, 32.0),
            "sinks_only": group(-0.46, 1289.0, n=3),
            "norm_quartiles": [group(ev, 32.0) for ev in (0.81, 0.82, 0.83, -184.0)],
            "quartile_edges": [1.0, 2.0, 3.0],
            "sink_norm_limit": 1770.0,
            "n_tokens": 1234,
            "never_fired_share": 0.325,
        },
        "loss": {
            "n_predictions": 100,
            "n_sinks": 3,
            "clean": 3.0,
            "ablated": 11.0,
            "spliced": 4.0,
            "spliced_sinks_kept": 3.4,
            "recovered": 0.875,
            "recovered_sinks_kept": 0.95,
            "kl_ablated": 8.0,
            "kl_spliced": 1.0,
            "kl_spliced_sinks_kept": 0.4,
            "kl_recovered": 0.875,
            "kl_recovered_sinks_kept": 0.95,
        },
        "exponents": [0.1, 0.2, 0.3],
        "scale": 24.0,
        "threshold": 0.8,
        "probing": {
            "news": {"1": 0.6, "2": 0.7, "5": 0.8},
            "code": {"1": 0.7, "2": 0.8, "5": 0.9},
        },
    }
    return full | kw


def results(**arms: dict[str, Any]) -> dict[str, Any]:
    return {
        "settings": {
            "model": "SmolLM2-135M",
            "layer": 15,
            "hook_name": "blocks.15.hook_resid_post",
            "training_tokens": 150_000,
            "evaluation_tokens": 1234,
            "d_in": 576,
            "d_sae": 2304,
            "k": 32,
            "seed": 0,
            "versions": {"torch": "2.14.1", "sae-lens": "6.54.12"},
            "machine": "2 CPU cores",
            "minutes": 9.4,
        },
        "arms": arms or {"baseline": arm(exponents=None), "cosine": arm()},
    }


def rows(res: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    found = summary_rows(Results.model_validate(res))
    return {(row.section, row.label): row.values for row in found}


def test_summary_holds_every_headline_number():
    found = rows(results())
    assert found["Explained variance", "sinks only"] == ["−0.460"] * 2
    assert found["Latents per token (L0)", "sinks only"] == ["1,289"] * 2
    assert found["Latents", "never fired"] == ["32.5 %"] * 2
    # mean of 0.1, 0.2, 0.3
    assert found["Latents", "mean exponent"] == ["–", "0.200"]
    assert found["Cross-entropy recovered", "plainly spliced"] == ["0.875"] * 2
    assert found["Cross-entropy recovered", "sinks kept"] == ["0.950"] * 2
    # (0.6 + 0.7) / 2
    assert found["Probing accuracy, mean", "top-1"] == ["0.650"] * 2
    assert ("L0 without sink latents", "all tokens") not in found


def test_reserved_latents_add_their_own_rows():
    own = arm()
    own["reconstruction"]["all_tokens"]["l0_without_sink_latents"] = 31.5
    found = rows(results(own=own))
    assert found["L0 without sink latents", "all tokens"] == ["31.5"]


def test_means_over_different_data_sets_are_not_compared():
    partial = arm(probing={"news": {"1": 0.99}})
    found = rows(results(full=arm(), partial=partial))
    assert found["Probing accuracy, mean", "top-1"] == ["0.650", "–"]
    assert found["Probing accuracy, mean", "top-5"] == ["0.850", "–"]


def test_numbers_and_settings_as_text():
    assert [number(v) for v in (None, float("nan"), -0.25)] == ["–", "–", "−0.250"]
    assert number(24000.4) == "24,000"
    settings = dict(setting_rows(Results.model_validate(results()).settings))
    assert settings["training tokens"] == "150,000"
    assert settings["d_sae"] == "2304"
    assert settings["versions"] == "torch 2.14.1, sae-lens 6.54.12"
    assert settings["minutes"] == "9.4"  # a key outside the schema


def test_terminal_table_shows_the_same_rows_within_80_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(results(**{"[red]x[/red]": arm()})))
    text = console.export_text()
    assert "[red]x[/red]" in text
    assert "Explained variance" in text
    assert "−0.460" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "not a benchmark" in text


def test_report_is_one_file_that_needs_no_network(tmp_path: Path):
    path = tmp_path / "report.html"
    write_report(results(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=", page)
    assert "default-src 'none'" in page
    assert page.count("plotly.js v") == 1
    positions = [page.index(f"<h2>{heading}</h2>") for heading in HEADINGS]
    assert positions == sorted(positions)
    assert page.count('class="plotly-graph-div"') == 4
    assert "Not measured" not in page
    assert "not a benchmark" in page
    assert "3 of 1,234 evaluated tokens" in page


@pytest.mark.parametrize(
    ("bare", "missing"),
    [
        ({"probing": {}}, 1),
        ({"exponents": None}, 1),
        ({"exponents": []}, 1),
        ({"reconstruction": None}, 2),
        ({"loss": None}, 0),
        ({"probing": {}, "exponents": None, "reconstruction": None, "loss": None}, 4),
    ],
)
def test_what_was_not_measured_is_said(bare: dict[str, Any], missing: int):
    page = render(Results.model_validate(results(only=arm(**bare))))
    assert page.count("Not measured in this run.") == missing


def test_exponents_that_diverged_do_not_cost_the_report():
    nan = float("nan")
    res = results(some=arm(exponents=[nan, 0.1]), all=arm(exponents=nan))
    assert rows(res)["Latents", "mean exponent"] == ["–", "–"]
    figure = plots.exponent_plot(
        Results.model_validate(res).arms, {"some": "red", "all": "blue"}, go
    ).figure
    assert figure is not None
    assert [trace.name for trace in figure.data] == ["some"]


def test_no_sinks_and_no_variance():
    no_sinks = arm()
    no_sinks["reconstruction"]["sinks_only"] = group(None, None, n=0, norm_ratio=None)
    res = results(only=no_sinks)
    assert rows(res)["Explained variance", "sinks only"] == ["–"]
    assert "0 of 1,234 evaluated tokens" in render(Results.model_validate(res))


def test_text_from_outside_is_escaped():
    res = results(**{EVIL: arm(probing={EVIL: {"1": 0.5}}, architecture=EVIL)})
    res["settings"] |= {"model": EVIL, "machine": EVIL, EVIL: EVIL}
    page = render(Results.model_validate(res))
    assert "<img" not in page.replace(_plotly_js(), "")
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def test_bars_are_cut_but_tell_the_true_value():
    plot = plots.variance_plot(Results.model_validate(results()).arms, COLOURS, go)
    assert plot.figure is not None
    bars = plot.figure.data[0]
    assert list(bars.y) == [0.81, 0.82, 0.83, -1.0, -0.46]
    assert bars.text[3] == "−184.00 ▼"


def test_an_l0_of_zero_has_no_bar_on_the_log_axis():
    silent = arm()
    silent["reconstruction"]["sinks_excluded"]["l0"] = 0.0
    res = Results.model_validate(results(silent=silent))
    plot = plots.l0_plot(res.arms, {"silent": "red"}, go)
    assert plot.figure is not None
    assert list(plot.figure.data[0].y) == [None, 1289.0]
    assert plot.figure.data[0].text[0] == "0.0"


def test_global_exponent_is_a_line_and_per_feature_a_histogram():
    res = Results.model_validate(results(each=arm(), one=arm(exponents=0.25)))
    figure = plots.exponent_plot(res.arms, {"each": "red", "one": "blue"}, go).figure
    assert figure is not None
    histogram, line = figure.data
    assert sum(histogram.y) == pytest.approx(1.0)
    assert list(line.x) == [0.25, 0.25]
    assert line.name == "one (one for all: 0.250)"


def test_arms_keep_their_colour_in_every_plot():
    res = Results.model_validate(results())
    figures = [
        plots.variance_plot(res.arms, COLOURS, go).figure,
        plots.l0_plot(res.arms, COLOURS, go).figure,
        plots.probing_plot(res, COLOURS, go, make_subplots).figure,
        plots.exponent_plot(res.arms, COLOURS, go).figure,
    ]
    for figure in figures:
        assert figure is not None
        for trace in figure.data:
            assert trace.marker.color == COLOURS[trace.name]


COLOURS = {"baseline": "red", "cosine": "blue"}


def test_a_failed_write_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(report.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(results(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_missing_plotly_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real_import = builtins.__import__

    def no_plotly(name: str, *args: Any, **kw: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError(name)
        return real_import(name, *args, **kw)

    monkeypatch.setattr(builtins, "__import__", no_plotly)
    for name in [n for n in sys.modules if n.startswith("plotly")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=re.escape('"sae-lens-cosine[demo]"')):
        write_report(results(), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_schema_refuses_an_empty_run_and_survives_json():
    with pytest.raises(ValidationError, match="at least 1"):
        Results.model_validate(results() | {"arms": {}})
    checked = Results.model_validate(results())
    text = json.dumps(checked.model_dump(), allow_nan=False)
    assert Results.model_validate_json(text) == checked
