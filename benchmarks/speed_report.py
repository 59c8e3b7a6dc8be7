"""Tables and plot of `speed.py`, from its figures."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TITLES = {
    "step": "Training step",
    "dead": "Training step, 20% of latents dead (auxiliary loss)",
    "topk": "Training step, TopK",
    "sinks": "What sink latents cost",
    "inference": "Inference",
    "growth": "Growth with k and batch",
}
GEMM = "x @ W_enc"


def markdown(found: dict[str, Any]) -> str:
    """One table a part; the arm that ratios are to has ratio 1."""
    cpu = found["machine"] if found["device"] == "cpu" else found["device"]
    lines = [f"{cpu}, {found['threads']} threads, float32; medians."]
    for part, title in TITLES.items():
        if part not in found:
            continue
        lines += ["", f"### {title}", ""]
        if part == "inference":
            lines += _inference(found[part])
        else:
            lines += _steps(found[part])
    return "\n".join(lines) + "\n"


def _steps(cells: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| d_sae | k | batch | arm | seconds | spread | ratio | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        where = f"| {cell['d_sae']} | {cell['k']} | {cell['batch']} "
        for arm, seconds in cell["seconds"].items():
            ratio = cell["ratio"].get(arm)
            peak = cell.get("peak_ratio", {}).get(arm)
            spread = f"{seconds['fastest']:.3f}-{seconds['slowest']:.3f}"
            lines.append(
                f"{where}| {arm} | {seconds['median']:.3f} | {spread} "
                f"| {'' if ratio is None else f'{ratio:.2f}'} "
                f"| {'' if peak is None else f'{peak:.2f}'} |"
            )
    return lines


def _inference(cells: list[dict[str, Any]]) -> list[str]:
    names = list(cells[0]["ratio"])
    lines = [
        f"| d_sae | batch | {' | '.join(names)} |",
        "|---" * (2 + len(names)) + "|",
    ]
    for cell in cells:
        values = " | ".join(f"{cell['ratio'][name]:.2f}" for name in names)
        lines.append(f"| {cell['d_sae']} | {cell['batch']} | {values} |")
    return lines


def plot(found: dict[str, Any], path: Path) -> None:
    """Microseconds a token against d_sae, k and batch, where they were varied."""
    growth = found.get("growth", [])
    ks = [c for c in growth if c["batch"] == (growth[0]["batch"] if growth else 0)]
    batches = sorted((c for c in growth if c["k"] == 32), key=lambda c: c["batch"])
    panels = [
        (name, cells)
        for name, cells in (
            ("d_sae", found.get("step", [])),
            ("k", ks),
            ("batch", batches),
        )
        if len(cells) > 1
    ]
    if not panels:
        return
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.4), squeeze=False
    )
    for ax, (name, cells) in zip(axes[0], panels, strict=True):
        for arm in cells[0]["seconds"]:
            y = [1e6 * c["seconds"][arm]["median"] / c["batch"] for c in cells]
            style = "--" if arm == GEMM else "o-"
            ax.plot([c[name] for c in cells], y, style, label=arm)
        ax.set(xlabel=name, xscale="log", yscale="log")
        ax.set_xticks([c[name] for c in cells], [str(c[name]) for c in cells])
        ax.set_yticks(ticks := [50, 100, 200, 500, 1000, 2000, 5000, 10_000])
        ax.set_yticklabels([str(tick) for tick in ticks])
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds a token")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
