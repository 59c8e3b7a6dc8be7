"""What the demo measures: the schema of ``results.json``, and its summary in rows.

The terminal table and the HTML report print the same rows, so they cannot disagree.
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from sae_lens_cosine.evaluation import (
    GroupMetrics,
    ReconstructionMetrics,
)
from sae_lens_cosine.loss_recovered import LossRecovered

NOT_A_BENCHMARK = (
    "This is a demonstration, not a benchmark: one seed, one small model and far fewer "
    "training tokens than a real run. Differences between the SAEs can be chance."
)
MISSING = "\N{EN DASH}"


class Settings(BaseModel):
    """How the run was made. Further keys are kept, and shown as they are."""

    model_config = ConfigDict(extra="allow")

    model: str
    layer: int
    hook_name: str
    training_tokens: int
    evaluation_tokens: int
    d_in: int
    d_sae: int
    k: int
    seed: int
    versions: dict[str, str]
    """Package name to version."""
    machine: str
    """For example ``2 CPU cores, 8 GiB``."""


class ArmResults(BaseModel):
    """One SAE. ``None`` or empty where something was not measured."""

    architecture: str
    reconstruction: ReconstructionMetrics | None = None
    loss: LossRecovered | None = None
    exponents: list[float] | float | None = None
    """One per ordinary latent, or the global one; None for an SAE that has none."""
    scale: float | None = None
    """``exp(b)`` of a cosine SAE, the mean over latents if there is one for each."""
    threshold: float | None = None
    probing: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Data set to k (``"1"``, ``"2"``, ``"5"``) to test accuracy, 0 to 1."""

    @property
    def mean_exponent(self) -> float | None:
        if isinstance(self.exponents, list):
            return fmean(self.exponents) if self.exponents else None
        return self.exponents


class Results(BaseModel):
    """The content of ``results.json``."""

    settings: Settings
    arms: dict[str, ArmResults] = Field(min_length=1)
    """By name, in the order of display."""

    @property
    def datasets(self) -> list[str]:
        """Probed data sets, in order of appearance."""
        return list(dict.fromkeys(d for arm in self.arms.values() for d in arm.probing))

    @property
    def probe_sizes(self) -> list[str]:
        """The probes' k, ascending."""
        sizes = {k for a in self.arms.values() for d in a.probing.values() for k in d}
        return sorted(sizes, key=int)

    def mean_probing(self, arm: ArmResults, k: str) -> float | None:
        """Mean accuracy at ``k``; None unless the arm has every data set, because
        means over different data sets cannot be compared."""
        found = [arm.probing.get(name, {}).get(k) for name in self.datasets]
        accuracies = [accuracy for accuracy in found if accuracy is not None]
        return fmean(accuracies) if len(accuracies) == len(found) > 0 else None


class Row(NamedTuple):
    """One line of the summary: a value per arm, ready to print."""

    section: str
    label: str
    values: list[str]


def number(value: float | None, digits: int = 3) -> str:
    """Fixed-point text, a dash where there is nothing to say."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def percent(value: float | None) -> str:
    """A share of 0 to 1 in per cent."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def summary_rows(results: Results) -> list[Row]:
    """Every arm's headline numbers; the order is the order of display."""
    arms = list(results.arms.values())

    def row(section: str, label: str, read: Callable[[ArmResults], str]) -> Row:
        return Row(section, label, [read(arm) for arm in arms])

    def groups(
        section: str, read: Callable[[GroupMetrics], float | None], digits: int
    ) -> list[Row]:
        kinds = {
            "all tokens": "all_tokens",
            "sinks excluded": "sinks_excluded",
            "sinks only": "sinks_only",
        }

        def value(arm: ArmResults, kind: str) -> str:
            if arm.reconstruction is None:
                return MISSING
            return number(read(getattr(arm.reconstruction, kind)), digits)

        return [
            row(section, label, lambda arm, kind=kind: value(arm, kind))
            for label, kind in kinds.items()
        ]

    def loss(name: str) -> Callable[[ArmResults], str]:
        return lambda arm: number(arm.loss and getattr(arm.loss, name))

    def dead(arm: ArmResults) -> str:
        rec = arm.reconstruction
        return percent(rec.never_fired_share if rec else None)

    rows = groups("Explained variance", lambda g: g.explained_variance, 3)
    rows += groups("Latents per token (L0)", lambda g: g.l0, 1)
    if any(_has_sink_latents(arm) for arm in arms):
        section = "L0 without sink latents"
        rows += groups(section, lambda g: g.l0_without_sink_latents, 1)
    rows += groups("Norm ratio", lambda g: g.norm_ratio, 2)
    rows += [
        row("Latents", "never fired", dead),
        row("Latents", "mean exponent", lambda arm: number(arm.mean_exponent)),
        row("Cross-entropy recovered", "plainly spliced", loss("recovered")),
        row("Cross-entropy recovered", "sinks kept", loss("recovered_sinks_kept")),
    ]
    for k in results.probe_sizes:
        rows.append(
            row(
                "Probing accuracy, mean",
                f"top-{k}",
                lambda arm, k=k: number(results.mean_probing(arm, k)),
            )
        )
    return rows


def terminal_table(results: Mapping[str, Any]) -> Table:
    """The summary with one column per arm.

    Args:
        results: as in ``results.json``, see :class:`Results`.

    Raises:
        pydantic.ValidationError: if ``results`` does not follow the schema.
    """
    checked = Results.model_validate(results)
    table = Table(title="Results on held-out text", caption=NOT_A_BENCHMARK, box=SIMPLE)
    table.add_column("", no_wrap=True)
    for name in checked.arms:
        table.add_column(Text(name), justify="right", overflow="fold")
    section = ""
    for row in summary_rows(checked):
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(Text(section, style="bold"))
        table.add_row(f"  {row.label}", *row.values)
    return table


def setting_rows(settings: Settings) -> list[tuple[str, str]]:
    """Settings as name and text, ready to print."""
    return [
        (
            name if name.startswith("d_") else name.replace("_", " "),
            _setting_text(value),
        )
        for name, value in settings
    ]


def _setting_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}"
    return str(value)


def _has_sink_latents(arm: ArmResults) -> bool:
    rec = arm.reconstruction
    if rec is None:
        return False
    return rec.all_tokens.l0 != rec.all_tokens.l0_without_sink_latents
