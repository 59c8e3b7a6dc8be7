"""Results as rows of text.

The terminal table and the HTML report print the same rows, so they cannot disagree.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from sae_lens_cosine.demo.results import ArmResults, Results
from sae_lens_cosine.evaluation import GroupMetrics

HEADING = "Results on held-out text"
NOT_A_BENCHMARK = (
    "This is a demonstration, not a benchmark: one seed, one small model and far fewer "
    "training tokens than a real run. Differences between the SAEs can be chance."
)
MISSING = "\N{EN DASH}"


Arm = TypeVar("Arm", bound=ArmResults)


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


def row(
    arms: Sequence[Arm], section: str, label: str, read: Callable[[Arm], str]
) -> Row:
    """One line, with what ``read`` says of each arm."""
    return Row(section, label, [read(arm) for arm in arms])


def group_rows(
    arms: Sequence[ArmResults],
    section: str,
    read: Callable[[GroupMetrics], float | None],
    digits: int,
) -> list[Row]:
    """One number for all tokens, without sinks, and on sinks only."""
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
        row(arms, section, label, lambda arm, kind=kind: value(arm, kind))
        for label, kind in kinds.items()
    ]


def loss_rows(arms: Sequence[ArmResults], section: str, prefix: str = "") -> list[Row]:
    """The share recovered of cross-entropy, or of the divergence (``"kl_"``)."""

    def read(name: str) -> Callable[[ArmResults], str]:
        return lambda arm: number(arm.loss and getattr(arm.loss, prefix + name))

    return [
        row(arms, section, "plainly spliced", read("recovered")),
        row(arms, section, "sinks kept", read("recovered_sinks_kept")),
    ]


def evaluation_rows(arms: Sequence[ArmResults]) -> list[Row]:
    """Reconstruction, latents and loss, in the order of display."""

    def dead(arm: ArmResults) -> str:
        rec = arm.reconstruction
        return percent(rec.never_fired_share if rec else None)

    rows = group_rows(arms, "Explained variance", lambda g: g.explained_variance, 3)
    rows += group_rows(arms, "Latents per token (L0)", lambda g: g.l0, 1)
    if any(_has_sink_latents(arm) for arm in arms):
        section = "L0 without sink latents"
        rows += group_rows(arms, section, lambda g: g.l0_without_sink_latents, 1)
    rows += group_rows(arms, "Norm ratio", lambda g: g.norm_ratio, 2)
    rows += [
        row(arms, "Latents", "never fired", dead),
        row(arms, "Latents", "mean exponent", lambda arm: number(arm.mean_exponent)),
    ]
    return rows + loss_rows(arms, "Cross-entropy recovered")


def summary_rows(results: Results) -> list[Row]:
    """Every arm's headline numbers; the order is the order of display."""
    arms = list(results.arms.values())
    rows = evaluation_rows(arms)
    for k in results.probe_sizes:
        rows.append(
            row(
                arms,
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
    return rows_table(HEADING, checked.arms, summary_rows(checked), NOT_A_BENCHMARK)


def rows_table(
    title: str, columns: Iterable[str], rows: Iterable[Row], caption: str
) -> Table:
    """Rows for the terminal, under their sections."""
    table = Table(title=title, caption=caption, box=SIMPLE)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(Text(section, style="bold"))
        table.add_row(f"  {row.label}", *row.values)
    return table


def setting_rows(settings: BaseModel) -> list[tuple[str, str]]:
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
