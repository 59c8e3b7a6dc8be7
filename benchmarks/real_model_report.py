"""JSON and Markdown of `real_model.py`, from the parts that are there."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import real_model_claims as claims
from arms import ARMS, OUTLIERS
from common import read_parts, spread_of

MASKINGS = {"none": "all", "norm": "masked"}


def report(parts: Path) -> dict[str, Any]:
    """Everything measured, and the verdicts that follow."""
    settings = json.loads((parts / "settings.json").read_text())
    runs = sorted(read_parts(parts / "trained"), key=_order)
    probed = sorted(
        read_parts(parts / "probed"), key=lambda p: (-p["layer"], p["seed"])
    )
    layers = list(dict.fromkeys(part["layer"] for part in runs))
    steps = settings["train_rows"] // settings["batch"]
    norms = read_parts(parts / "norms")
    by_layer = {
        layer: claims.Layer(
            _by_arm_and_seed(runs, layer),
            {p["seed"]: p["summary"] for p in probed if p["layer"] == layer},
            _by_arm_and_seed(norms, layer),
            settings["lr"] * steps,
        )
        for layer in layers
    }
    return {
        "settings": settings,
        "machines": list(dict.fromkeys(part["machine"] for part in runs)),
        "versions": [
            json.loads(text)
            for text in dict.fromkeys(json.dumps(part["versions"]) for part in runs)
        ],
        "commands": commands(parts, settings, runs),
        "hours": {
            "training and evaluation": round(sum(r["seconds"] for r in runs) / 3600, 2),
            "probing": round(sum(p["seconds"] for p in probed) / 3600, 2),
        },
        "verdicts": {
            layer: {
                claim: {kind: asdict(finding) for kind, finding in found.items()}
                for claim, found in claims.verdicts(measured).items()
            }
            for layer, measured in by_layer.items()
        },
        "runs": [_figures(run) for run in runs],
        "norms": [_figures(part) for part in norms],
        "probing": [_scores(part) for part in probed],
    }


def commands(
    parts: Path, settings: dict[str, Any], runs: list[dict[str, Any]]
) -> list[str]:
    """What makes the same parts again, up to the names of folders."""
    out = f"benchmarks/results/{parts.name.removesuffix('.parts')}"
    meta = settings["activations"]
    layers = ",".join(str(r) for r in dict.fromkeys(r["layer"] for r in runs))
    arms = [arm for arm in ARMS if any(r["arm"] == arm for r in runs)]
    seeds = 1 + max((r["seed"] for r in runs), default=0)
    return [
        "python benchmarks/cache_activations.py --out cache "
        f"--layers {','.join(map(str, meta['layers']))} "
        f"--train-tokens {meta['train_tokens']} --eval-tokens {meta['eval_tokens']} "
        f"--context-size {meta['context_size']} --seed {meta['seed']}",
        "python benchmarks/real_model.py --cache cache "
        f"--out {out} "
        f"--layers {layers} --arms {','.join(arms)} --seeds {seeds} "
        f"--train-rows {settings['train_rows']} "
        f"--loss-tokens {settings['loss_tokens']} "
        f"--probe-train-rows {settings['probe_train_rows']} "
        f"--probe-test-rows {settings['probe_test_rows']}",
        f"python benchmarks/real_model_norms.py --cache cache --out {out}",
    ]


def markdown(found: dict[str, Any]) -> str:
    """Verdicts first, then the figures of every arm."""
    settings = found["settings"]
    lines = [
        "# The paper's claims on a real model",
        "",
        f"{settings['activations']['model']}, {settings['train_rows']:,} training "
        f"tokens in batches of {settings['batch']}, d_sae {settings['d_sae']}, "
        f"k {settings['k']}. Figures are the mean \N{PLUS-MINUS SIGN} standard "
        "deviation over seeds. Verdicts follow from the rules in "
        "`benchmarks/real_model_claims.py`; what arms are is said in "
        "`benchmarks/arms.py`. Written by `benchmarks/real_model.py`.",
    ]
    for layer in found["verdicts"]:
        lines += ["", f"## Layer {layer}", "", *_verdict_table(found, layer)]
        lines += ["", *_arm_table(found, layer)]
    hours = ", ".join(f"{what} {value} h" for what, value in found["hours"].items())
    lines += ["", "## How", "", "```sh", *found["commands"], "```", ""]
    lines += [f"{'; '.join(found['machines'])}. {hours}.", ""]
    return "\n".join(lines)


def _verdict_table(found: dict[str, Any], layer: int) -> list[str]:
    lines = [f"| claim | {' | '.join(claims.REGIMES)} |", "|---" * 3 + "|"]
    for claim, by_kind in found["verdicts"][layer].items():
        cells = [
            f"**{f['verdict']}**" + (f": {f['detail']}" if f["detail"] else "")
            for f in by_kind.values()
        ]
        lines.append(f"| {claim} | {' | '.join(cells)} |")
    return lines


Run = dict[str, Any]
COLUMNS: dict[str, Callable[[Run], float | None]] = {
    "EV all": lambda r: r["reconstruction"]["all_tokens"]["explained_variance"],
    "EV ordinary": lambda r: r["reconstruction"]["sinks_excluded"][
        "explained_variance"
    ],
    "L0 ordinary": lambda r: r["reconstruction"]["sinks_excluded"]["l0"],
    "L0 sinks": lambda r: r["reconstruction"]["sinks_only"]["l0"],
    "never fired": lambda r: r["reconstruction"]["never_fired_share"],
    "CE recovered": lambda r: r["loss"]["recovered"],
    "CE, sinks kept": lambda r: r["loss"]["recovered_sinks_kept"],
    "exponent": lambda r: (r["exponent"] or {}).get("mean"),
}


def _arm_table(found: dict[str, Any], layer: int) -> list[str]:
    probes = [
        (f"top-{k}, {label}", masking, str(k))
        for masking, label in MASKINGS.items()
        for k in (1, 5)
    ]
    heads = [*COLUMNS, *(head for head, _, _ in probes)]
    lines = [
        f"| arm | outliers | seeds | {' | '.join(heads)} |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for arm in ARMS:
        runs = [r for r in found["runs"] if (r["layer"], r["arm"]) == (layer, arm)]
        if not runs:
            continue
        cells = [spread_of([read(run) for run in runs]) for read in COLUMNS.values()]
        for _, masking, k in probes:
            by_seed = [
                p["scores"][masking][arm][k]["mean"]
                for p in found["probing"]
                if p["layer"] == layer and arm in p["scores"][masking]
            ]
            cells.append(spread_of(by_seed))
        lines.append(f"| {arm} | {OUTLIERS[arm]} | {len(runs)} | {' | '.join(cells)} |")
    return lines


def _scores(part: dict[str, Any]) -> dict[str, Any]:
    """Accuracies of a probing part, without the differences of all pairs."""
    return {
        "layer": part["layer"],
        "seed": part["seed"],
        "masked_share": {
            dataset: notes["masked_share"]
            for dataset, notes in part["summary"]["datasets"]["norm"].items()
        },
        "scores": {
            masking: {
                arm: {
                    k: {
                        "mean": scores["mean"]["mean"],
                        "by_dataset": {
                            d: accuracy["mean"]
                            for d, accuracy in scores["by_dataset"].items()
                        },
                        "llm": scores["llm"],
                    }
                    for k, scores in by_k.items()
                }
                for arm, by_k in column["scores"].items()
            }
            for masking, column in part["summary"]["columns"].items()
        },
    }


def _by_arm_and_seed(
    found: list[dict[str, Any]], layer: int
) -> dict[str, dict[int, dict[str, Any]]]:
    return {
        arm: {
            part["seed"]: part
            for part in found
            if (part["layer"], part["arm"]) == (layer, arm)
        }
        for arm in ARMS
    }


def _figures(part: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in part.items() if k not in ("machine", "versions")}


def _order(run: dict[str, Any]) -> tuple[int, int, int]:
    return -run["layer"], run["seed"], list(ARMS).index(run["arm"])
