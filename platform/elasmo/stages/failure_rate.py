"""How often a stage fails: a beta-binomial rate in which recent runs, and those like the next one, count for more.

First the rate of all runs, each weighted by its age: Beta(`PRIOR`) and the weighted counts of runs that ended well and
badly. Then the runs like the next one, by size, by whether it is a retry and by the gate's last verdict, starting from
`POOLED` pseudo-runs at the first rate. What a feature moved the chance by is the chance with it less that without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elasmo.measure import units
from elasmo.stages.beta import beta_quantile
from elasmo.stages.stage_run import StageRun

PRIOR = (0.5, 4.5)
"""Half a bad run in five, before any was seen."""
POOLED = 2.0
HALF_LIFE_RUNS = 20.0
DOUBLINGS = 1.0
"""A run half or twice as large counts exp(-1/2)."""
UNLIKE = {"retry": 0.25, "gate": 0.5}
"""What a run counts that is not a retry where the next is, or came after another verdict."""
FEATURES = ("size", "retry", "gate")
MOVED = 0.02
"""A feature that moves the chance by less is no reason."""


@dataclass(frozen=True)
class Chance:
    """A chance with its 90 % interval, and what it comes from."""

    value: float
    low: float
    high: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Next:
    """What is known of the next run of a stage."""

    bytes_in: float | None = None
    rows_in: float | None = None
    retries: int = 0
    verdict: str | None = None


@dataclass(frozen=True)
class Past:
    """What a past run was like when it began, and whether it ended badly."""

    bytes_in: float | None
    rows_in: float | None
    retries: int
    verdict: str | None
    bad: bool


def chance_of_failure(past: Sequence[Past], next_run: Next) -> Chance:
    """The chance that the next run fails or is killed; `past` by age, the oldest first."""
    a, b = posterior(past, next_run)
    value, bad = a / (a + b), sum(run.bad for run in past)
    reasons = [f"{bad} of {len(past)} runs ended badly"]
    for feature in FEATURES:
        without = posterior(past, next_run, [name for name in FEATURES if name != feature])
        moved = value - without[0] / sum(without)
        if abs(moved) >= MOVED:
            reasons.append(_reason(feature, moved, past, next_run))
    return Chance(value, beta_quantile(0.05, a, b), beta_quantile(0.95, a, b), tuple(reasons))


def posterior(past: Sequence[Past], next_run: Next, features: Collection[str] = FEATURES) -> tuple[float, float]:
    """The beta distribution of the chance that the next run ends badly."""
    ages = [0.5 ** (age / HALF_LIFE_RUNS) for age in range(len(past) - 1, -1, -1)]
    bad, good = _counts(past, ages)
    base = (PRIOR[0] + bad) / (sum(PRIOR) + bad + good)
    if not features:
        return PRIOR[0] + bad, PRIOR[1] + good
    alike = [age * math.prod(likeness(run, next_run, f) for f in features) for age, run in zip(ages, past, strict=True)]
    bad, good = _counts(past, alike)
    return POOLED * base + bad, POOLED * (1 - base) + good


def likeness(run: Past, next_run: Next, feature: str) -> float:
    """1 for a run that is like the next one in a feature, towards 0 the less it is; 1 where that is unknown."""
    if feature == "size":
        ratio = size_ratio(run, next_run)
        return 1.0 if ratio is None else math.exp(-0.5 * (math.log2(ratio) / DOUBLINGS) ** 2)
    if feature == "retry":
        same = (run.retries > 0) == (next_run.retries > 0)
    else:
        same = None in (run.verdict, next_run.verdict) or run.verdict == next_run.verdict
    return 1.0 if same else UNLIKE[feature]


def size_ratio(run: Past, next_run: Next) -> float | None:
    """How many times as large the run was, by bytes or else by rows."""
    for ours, theirs in ((run.bytes_in, next_run.bytes_in), (run.rows_in, next_run.rows_in)):
        if ours and theirs:
            return ours / theirs
    return None


def past_of(runs: Sequence[StageRun], verdicts: Sequence[str | None]) -> list[Past]:
    """Runs of a stage, with the gate's verdict before each."""
    return [
        Past(run.bytes_in, run.rows_in, run.retries, verdict, run.outcome != "done")
        for run, verdict in zip(runs, verdicts, strict=True)
    ]


def _counts(past: Sequence[Past], weights: Sequence[float]) -> tuple[float, float]:
    bad = sum(weight for run, weight in zip(past, weights, strict=True) if run.bad)
    return bad, sum(weights) - bad


def _reason(feature: str, moved: float, past: Sequence[Past], next_run: Next) -> str:
    what = {
        "size": "runs of about its size",
        "retry": "retries" if next_run.retries else "runs that were no retry",
        "gate": f"runs after the verdict {next_run.verdict}",
    }[feature]
    alike = [run for run in past if likeness(run, next_run, feature) > 0.6]
    side = "raises" if moved > 0 else "lowers"
    counts = f"{sum(run.bad for run in alike)} of {len(alike)} {what} ended badly"
    return f"{counts}, which {side} it by {units.percent(abs(moved))}"


def at_scale(run: StageRun, scale: float) -> Next:
    """A next run whose input is `scale` times that of a past one."""
    size, rows = (None if given is None else given * scale for given in (run.bytes_in, run.rows_in))
    return Next(size, rows, retries=0 if run.outcome == "done" else run.retries + 1)
