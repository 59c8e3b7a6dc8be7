"""Verdicts on the paper's claims, by rule, from what `real_model.py` measured.

Every claim is brought to a margin a seed, with an interval: positive speaks for the
claim. It *holds* where the whole interval is positive in every seed, *does not* where
it is negative in every seed, and else it is *not at this scale*: the seeds disagree, or
an interval includes zero. Intervals of probing differences are the paired bootstrap's
(95%, over test prompts); reconstruction is measured on enough tokens to go without.
Probing is top-1 accuracy, the mean over the offline suite.

Norm detectors *fill* the baseline where they are most of its unmatched latents.

A control closes the share `(control - baseline) / (cosine - baseline)` of a gap, with
both filtered. It closes *little* below 0.25 and *much* above 0.5, in every seed; where
the gap itself is not positive in every seed there is nothing to close.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

HOLDS, FAILS = "holds", "does not"
OPEN, UNMEASURED = "not at this scale", "not measured"

EV_TOLERANCE = 0.02
LITTLE, MUCH = 0.25, 0.5
SENTIMENT = "amazon_sentiment"
BASELINE, FILTERED = "batchtopk", "batchtopk_filtered"
REWEIGHTED = ("reweighted_inverse_norm", "reweighted_inverse_norm_squared")
REGIMES = {"global": "cosine", "per feature": "cosine_per_feature"}


class Interval(NamedTuple):
    mean: float
    low: float
    high: float

    def negated(self) -> "Interval":
        return Interval(-self.mean, -self.high, -self.low)


@dataclass(frozen=True)
class Finding:
    """One claim, at one layer, for one kind of cosine SAE."""

    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Layer:
    """What was measured at one layer."""

    runs: dict[str, dict[int, dict[str, Any]]]
    """Arm -> seed -> part of the training stage."""
    probes: dict[int, dict[str, Any]]
    """Seed -> summary of the probing stage."""
    norms: dict[str, dict[int, dict[str, Any]]]
    """Arm -> seed -> part with its norm detectors."""
    exponent_travel: float
    """How far Adam can move a parameter: learning rate times steps."""

    def ordinary(self, arm: str, figure: str) -> dict[int, float]:
        """A figure of ordinary tokens, by seed."""
        return {
            seed: run["reconstruction"]["sinks_excluded"][figure]
            for seed, run in self.runs.get(arm, {}).items()
        }

    def probing(
        self, first: str, second: str, masking: str, dataset: str | None = None
    ) -> dict[int, Interval]:
        """Top-1 accuracy of ``first`` minus ``second``, by seed."""
        found = {}
        for seed, summary in self.probes.items():
            for pair in summary["columns"][masking]["differences"]["1"]:
                if {pair["first"], pair["second"]} != {first, second}:
                    continue
                if dataset is not None and dataset not in pair["by_dataset"]:
                    continue
                of = pair["by_dataset"][dataset] if dataset else pair["mean"]
                interval = Interval(of["mean"], of["low"], of["high"])
                found[seed] = interval if pair["first"] == first else interval.negated()
        return found

    def reconstruction(self, first: str, second: str) -> dict[int, Interval]:
        """Explained variance of ``first`` minus ``second``, by seed."""
        a, b = (self.ordinary(arm, "explained_variance") for arm in (first, second))
        return {s: Interval(*3 * (a[s] - b[s],)) for s in a.keys() & b.keys()}


Gap = Callable[[str, str], dict[int, Interval]]


def judge(margins: list[Interval], detail: str) -> Finding:
    if not margins:
        return Finding(UNMEASURED)
    if all(margin.low > 0 for margin in margins):
        return Finding(HOLDS, detail)
    if all(margin.high < 0 for margin in margins):
        return Finding(FAILS, detail)
    return Finding(OPEN, detail)


def difference(by_seed: dict[int, Interval]) -> Finding:
    """The claim that a difference is positive."""
    return judge([*by_seed.values()], described(by_seed))


def described(by_seed: dict[int, Interval]) -> str:
    """Mean, and the lowest and highest bound, over seeds."""
    if not by_seed:
        return ""
    found = [*by_seed.values()]
    mean = fmean(i.mean for i in found)
    low, high = min(i.low for i in found), max(i.high for i in found)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def matched(layer: Layer, cosine: str) -> Finding:
    found = layer.reconstruction(f"{cosine}_filtered", FILTERED)
    margins = [Interval(*3 * (EV_TOLERANCE - abs(i.mean),)) for i in found.values()]
    if not found:
        return Finding(UNMEASURED)
    l0 = [
        fmean(layer.ordinary(arm, "l0").values())
        for arm in (f"{cosine}_filtered", FILTERED)
    ]
    return judge(margins, f"{described(found)} at L0 {l0[0]:.1f} and {l0[1]:.1f}")


def exponent_below_half(layer: Layer, cosine: str) -> Finding:
    """From 0 and, where the exponent could not get there, from 0.5 as well."""
    arms = [f"{cosine}_filtered"]
    travel = layer.exponent_travel
    if cosine == REGIMES["per feature"]:
        travel *= 2  # base and offset move alike
    if travel <= 0.5:
        arms.append("cosine_from_half")
    means = [
        [run["exponent"]["mean"] for run in layer.runs.get(arm, {}).values()]
        for arm in arms
    ]
    if not means[0]:
        return Finding(UNMEASURED)
    detail = ", ".join(
        f"{start} to {fmean(values):.3f}"
        for start, values in zip(("0", "0.5"), means, strict=False)
        if values
    )
    if not all(means):
        return Finding(OPEN, f"{detail}; could not have passed 0.5")
    margins = [Interval(*3 * (0.5 - a,)) for values in means for a in values]
    return judge(margins, detail)


def closes_little(cosine: str, controls: tuple[str, ...], gap: Gap) -> Finding:
    """That the best of the controls closes little of a gap."""
    whole = gap(f"{cosine}_filtered", FILTERED)
    closed = [gap(control, FILTERED) for control in controls]
    seeds = set(whole).intersection(*closed)
    if not seeds:
        return Finding(UNMEASURED)
    if any(whole[seed].low <= 0 for seed in seeds):
        text = described({seed: whole[seed] for seed in seeds})
        return Finding(OPEN, f"no gap to close: {text}")
    shares = [max(c[seed].mean for c in closed) / whole[seed].mean for seed in seeds]
    detail = f"{fmean(shares):.2f} of {fmean(whole[s].mean for s in seeds):+.3f}"
    if all(share < LITTLE for share in shares):
        return Finding(HOLDS, detail)
    return Finding(FAILS if all(s > MUCH for s in shares) else OPEN, detail)


def norm_detectors_fill(layer: Layer, cosine: str) -> Finding:
    """That most latents of the baseline which the cosine SAE lacks are such."""
    parts = layer.norms.get(FILTERED, {})
    if cosine != REGIMES["global"] or not parts:
        return Finding(UNMEASURED)  # latents are matched with the global SAE's
    shares = [part["unmatched"]["norm_detector_share"] for part in parts.values()]
    firings = [part["unmatched"]["firings_in_q4"] for part in parts.values()]
    if None in shares:
        return Finding(OPEN, "no unmatched latent fires")
    detail = (
        f"{fmean(shares):.2f} of its latents, {fmean(firings):.2f} of their firings"
    )
    return judge([Interval(*3 * (share - 0.5,)) for share in shares], detail)


def _probing_gap(layer: Layer) -> Gap:
    return lambda first, second: layer.probing(first, second, "none")


Claim = Callable[[Layer, str], Finding]

CLAIMS: dict[str, Claim] = {
    "reconstruction is matched (explained variance of ordinary tokens within "
    f"{EV_TOLERANCE}, both filtered)": matched,
    "probing improves (over SAELens's BatchTopK, all tokens pooled)": lambda layer, c: (
        difference(layer.probing(f"{c}_filtered", BASELINE, "none"))
    ),
    "the optimizer keeps the exponent below 0.5": exponent_below_half,
    "reweighting closes little of the gap: probing": lambda layer, c: closes_little(
        c, REWEIGHTED, _probing_gap(layer)
    ),
    "reweighting closes little of the gap: reconstruction": lambda layer, c: (
        closes_little(c, REWEIGHTED, layer.reconstruction)
    ),
    "unit rows close little of the gap: probing": lambda layer, c: closes_little(
        c, ("unit_rows",), _probing_gap(layer)
    ),
    "unit rows close little of the gap: reconstruction": lambda layer, c: closes_little(
        c, ("unit_rows",), layer.reconstruction
    ),
    "a 3x dictionary stays behind: probing": lambda layer, c: difference(
        layer.probing(f"{c}_filtered", "batchtopk_3x", "none")
    ),
    "a 3x dictionary stays behind: reconstruction": lambda layer, c: difference(
        layer.reconstruction(f"{c}_filtered", "batchtopk_3x")
    ),
    "norm detectors fill the baseline (filtered; latents the cosine SAE lacks)": (
        norm_detectors_fill
    ),
    "the probing gain survives: sinks masked for both": lambda layer, c: difference(
        layer.probing(f"{c}_filtered", BASELINE, "norm")
    ),
    "the probing gain survives: both trained on filtered tokens": lambda layer, c: (
        difference(layer.probing(f"{c}_filtered", FILTERED, "none"))
    ),
    "the probing gain survives: both filtered, sinks masked": lambda layer, c: (
        difference(layer.probing(f"{c}_filtered", FILTERED, "norm"))
    ),
    "the probing gain survives: both with sink latents, sinks masked": lambda layer, c: (
        difference(layer.probing(f"{c}_sinks", "batchtopk_sinks", "norm"))
    ),
    "sentiment goes the other way (as probing above)": lambda layer, c: difference(
        layer.probing(BASELINE, f"{c}_filtered", "none", SENTIMENT)
    ),
    "sentiment goes the other way (both filtered, sinks masked)": lambda layer, c: (
        difference(layer.probing(FILTERED, f"{c}_filtered", "norm", SENTIMENT))
    ),
}


def verdicts(layer: Layer) -> dict[str, dict[str, Finding]]:
    """Claim -> kind of cosine SAE -> finding."""
    return {
        claim: {kind: test(layer, cosine) for kind, cosine in REGIMES.items()}
        for claim, test in CLAIMS.items()
    }
