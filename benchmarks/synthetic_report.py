"""JSON and Markdown of `synthetic.py`, from the parts that are there."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from common import read_parts, spread_of

Run = dict[str, Any]
METRICS: dict[str, Callable[[Run], float]] = {
    "MCC": lambda r: r["mcc"],
    "F1": lambda r: r["classification"]["f1_score"],
    "precision": lambda r: r["classification"]["precision"],
    "recall": lambda r: r["classification"]["recall"],
    "L0": lambda r: r["sae_l0"],
    "explained variance": lambda r: r["explained_variance"],
}
PAIRS = (
    ("cosine_filtered", "batchtopk"),
    ("cosine_filtered", "batchtopk_filtered"),
    ("cosine_filtered", "reweighted_inverse_norm"),
    ("cosine_filtered", "unit_rows"),
    ("cosine_per_feature_filtered", "cosine_filtered"),
    ("cosine_sinks", "batchtopk_sinks"),
)
TIE = 0.01
KINDS = ("plain", "sinks")
"""Of training tokens, in the order of ``Run["sinks"]``."""


def report(parts: Path) -> dict[str, Any]:
    """Everything measured, and what pairs of arms differ by."""
    runs = read_parts(parts / "runs")
    settings = json.loads((parts / "settings.json").read_text())
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    kinds = dict.fromkeys(KINDS[run["sinks"]] for run in runs)
    command = (
        "python benchmarks/synthetic.py "
        f"--out benchmarks/results/{parts.name.removesuffix('.parts')} "
        f"--spreads {','.join(f'{s:g}' for s in spreads_of(runs))} "
        f"--arms {','.join(arms)} --kinds {','.join(kinds)} "
        f"--seeds {1 + max((r['seed'] for r in runs), default=0)} "
        f"--steps {settings['steps']}"
    )
    return {
        "settings": settings,
        "machines": list(dict.fromkeys(run["machine"] for run in runs)),
        "versions": runs[0]["versions"] if runs else {},
        "commands": [command],
        "hours": round(sum(run["seconds"] for run in runs) / 3600, 2),
        "partings": {
            "with sinks" if sinks else "without sinks": {
                f"{first} - {second}": parting(runs, sinks, first, second)
                for first, second in PAIRS
            }
            for sinks in (False, True)
        },
        "runs": [
            {k: v for k, v in run.items() if k not in ("machine", "versions")}
            for run in runs
        ],
    }


def parting(runs: list[Run], sinks: bool, first: str, second: str) -> dict[str, Any]:
    """F1 of one arm minus another, by spread, and from which spread on they part.

    Two arms part at a spread where the difference has one sign in every seed and is
    beyond ``TIE`` in the mean; they part *from* the lowest spread from which on they
    do so at every higher one, with the same sign.
    """
    by_spread: dict[float, list[float]] = {}
    for spread in spreads_of(runs):
        a, b = (
            {
                r["seed"]: METRICS["F1"](r)
                for r in runs
                if (r["arm"], r["sinks"], r["spread"]) == (arm, sinks, spread)
            }
            for arm in (first, second)
        )
        if both := sorted(a.keys() & b.keys()):
            by_spread[spread] = [a[seed] - b[seed] for seed in both]
    part_from, sign = None, None
    for spread, differences in sorted(by_spread.items(), reverse=True):
        here = _sign(differences)
        if here == 0 or (sign is not None and here != sign):
            break
        part_from, sign = spread, here
    return {
        "by_spread": {
            spread: {
                "mean": fmean(found),
                "low": min(found),
                "high": max(found),
                "parts": _sign(found) != 0,
            }
            for spread, found in by_spread.items()
        },
        "parts_from": part_from,
        "ahead": None if sign is None else first if sign > 0 else second,
    }


def _sign(differences: list[float]) -> int:
    """1 or -1 where arms part, 0 where they tie."""
    mean = fmean(differences)
    agree = all(d * mean > 0 for d in differences)
    return 0 if abs(mean) <= TIE or not agree else 1 if mean > 0 else -1


def spreads_of(runs: list[Run]) -> list[float]:
    return sorted({run["spread"] for run in runs})


def markdown(found: dict[str, Any]) -> str:
    settings, runs = found["settings"], found["runs"]
    spreads = spreads_of(runs)
    head = " | ".join(f"{s:g}" for s in spreads)
    lines = [
        "# Known features under a spread of norms",
        "",
        f"{settings['features']} features in {settings['d_in']} dimensions, "
        f"{settings['k']} a token; d_sae {settings['d_sae']}, k {settings['k']}, "
        f"{settings['steps']} steps of {settings['batch']} tokens. Columns: standard "
        "deviation of the log norm. Figures: mean \N{PLUS-MINUS SIGN} standard "
        "deviation over seeds, on ordinary tokens without sinks. What arms are is said "
        "in `benchmarks/arms.py`. Written by `benchmarks/synthetic.py`.",
    ]
    for sinks in (False, True):
        title = "with sinks" if sinks else "without sinks"
        mine = [run for run in runs if run["sinks"] == sinks]
        if not mine:
            continue
        lines += ["", f"## Trained on tokens {title}"]
        lines += ["", "### Who parts, by F1", ""]
        lines += [
            f"| difference | {head} | parts from |",
            "|---" * (len(spreads) + 2) + "|",
        ]
        for pair, parted in found["partings"][title].items():
            if not parted["by_spread"]:
                continue
            cells = []
            for spread in spreads:
                d = parted["by_spread"].get(spread)
                cells.append("-" if d is None else _difference(d))
            where = parted["parts_from"]
            end = (
                "no spread" if where is None else f"{where:g}: {parted['ahead']} ahead"
            )
            lines.append(f"| {pair} | {' | '.join(cells)} | {end} |")
        for name, read in METRICS.items():
            lines += ["", f"### {name}", "", f"| arm | {head} |"]
            lines.append("|---" * (len(spreads) + 1) + "|")
            for arm in dict.fromkeys(run["arm"] for run in mine):
                cells = [
                    spread_of(
                        [read(r) for r in mine if (r["arm"], r["spread"]) == (arm, s)]
                    )
                    for s in spreads
                ]
                lines.append(f"| {arm} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Two arms part (**bold**) where their difference has one sign in every seed and "
        f"is beyond {TIE} in the mean.",
        *("", "## How", "", "```sh", *found["commands"], "```", ""),
        f"{'; '.join(found['machines'])}. {found['hours']} h.",
        "",
    ]
    return "\n".join(lines)


def _difference(d: dict[str, Any]) -> str:
    text = f"{d['mean']:+.3f}"
    return f"**{text}**" if d["parts"] else text
