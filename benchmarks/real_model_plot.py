"""One figure of `real_model.py`: a dot a seed, a row an arm."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from arms import ARMS
from matplotlib.axes import Axes

NOT_SHOWN = {"cosine_from_half"}  # a check of the exponent, not a way to train
EVERYTHING, MASKED = "#d55e00", "#0072b2"


def plot(found: dict[str, Any], path: Path) -> None:
    """Reconstruction, loss recovered and probing, a line of panels a layer."""
    layers = list(found["verdicts"])
    figure, axes = plt.subplots(
        len(layers), 3, figsize=(11, 0.6 + 2.9 * len(layers)), squeeze=False
    )
    for layer, (ordinary, loss, probing) in zip(layers, axes, strict=True):
        runs = [r for r in found["runs"] if r["layer"] == layer]
        arms = [
            arm
            for arm in ARMS
            if arm not in NOT_SHOWN and any(r["arm"] == arm for r in runs)
        ]
        place = {arm: -i for i, arm in enumerate(arms)}
        runs = [r for r in runs if r["arm"] in place]
        ys = [place[r["arm"]] for r in runs]
        explained = [
            r["reconstruction"]["sinks_excluded"]["explained_variance"] for r in runs
        ]
        ordinary.plot(explained, ys, "o", color=MASKED, alpha=0.7)
        spliced = [r["loss"]["recovered"] for r in runs]
        kept = [r["loss"]["recovered_sinks_kept"] for r in runs]
        loss.plot(spliced, ys, "o", color=EVERYTHING, alpha=0.7, label="spliced")
        loss.plot(kept, ys, "|", color=MASKED, ms=11, label="sinks kept as they are")
        _probing(probing, found["probing"], layer, place)
        ordinary.set_yticks([*place.values()], arms, fontsize=7)
        ordinary.set_ylabel(f"layer {layer}")
        for ax in (loss, probing):
            ax.set_yticks([*place.values()], [])
            ax.legend(fontsize=6, loc="best")
        for ax in (ordinary, loss, probing):
            ax.grid(alpha=0.3)
            ax.tick_params(axis="x", labelsize=7)
    titles = (
        "explained variance, ordinary tokens",
        "cross-entropy recovered",
        "top-1 probing accuracy",
    )
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _probing(
    ax: Axes, probed: list[dict[str, Any]], layer: int, place: dict[str, int]
) -> None:
    kinds = {
        "none": ("o", EVERYTHING, "all tokens"),
        "norm": ("|", MASKED, "sinks masked"),
    }
    for masking, (marker, colour, label) in kinds.items():
        dots = [
            (scores["1"]["mean"], place[arm])
            for part in probed
            if part["layer"] == layer
            for arm, scores in part["scores"][masking].items()
            if arm in place
        ]
        if dots:
            x, y = zip(*dots, strict=True)
            ax.plot(
                x, y, marker, color=colour, alpha=0.7, ms=11 if marker == "|" else 6
            )
        ax.plot([], [], marker, color=colour, label=label)
