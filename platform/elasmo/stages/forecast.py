"""The next run of each stage, from the ledger of past ones: the chance that it fails or overruns, why, and what to do.

Pure functions over `StageRun`s. Runs whose result stood before, runs that a person interrupted and runs that still go
on say nothing; with fewer than `MIN_RUNS` that do, the answer is "unknown". Runs with injected faults count only when
asked for, and are counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasmo.measure import units
from elasmo.stages.failure_rate import HALF_LIFE_RUNS, Chance, Next, at_scale, chance_of_failure, past_of
from elasmo.stages.overrun import Prediction, predict
from elasmo.stages.stage_run import StageRun

MIN_RUNS = 5
TIME_SLOPE, MEMORY_SLOPE = 1.0, 0.5


@dataclass(frozen=True)
class Limits:
    """What a run may take; None for no limit."""

    seconds: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Range:
    """What a run will take: the median, and the interval that holds 90 % of such runs."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True)
class StageForecast:
    """The next run of a stage.

    Attributes:
        stage: its name.
        runs: past runs that count.
        synthetic_runs: those of them into which faults were injected.
        unknown: why nothing is said, a sentence; else None and `bad` is there.
        bad: the chance that it fails or overruns a limit.
        fails: that it fails or is killed.
        overtime: that one that ends takes longer than the limit; None without a limit or without runs to tell by.
        overmemory: that one that ends needs more memory than the limit; None likewise.
        seconds: how long it will take.
        memory_bytes: how much memory it will need.
    """

    stage: str
    runs: int
    synthetic_runs: int
    unknown: str | None = None
    bad: Chance | None = None
    fails: Chance | None = None
    overtime: Chance | None = None
    overmemory: Chance | None = None
    seconds: Range | None = None
    memory_bytes: Range | None = None


def telling(runs: Sequence[StageRun], synthetic: bool = False) -> list[StageRun]:
    """The runs that say something of the next one."""
    return [
        run
        for run in runs
        if not run.reused and not run.interrupted and run.outcome != "running" and (synthetic or not run.synthetic)
    ]


def forecast(
    runs: Sequence[StageRun], limits: Limits | None = None, scale: float = 1.0, synthetic: bool = False
) -> list[StageForecast]:
    """A forecast for each stage of a dataset, in the order in which stages came.

    Args:
        runs: of one dataset, the oldest first.
        limits: what each stage may take.
        scale: how many times as large as its last input the next one of a stage will be.
        synthetic: whether runs with injected faults count.
    """
    told = telling(runs, synthetic)
    verdicts = _verdicts_before(told)
    found = []
    for stage in dict.fromkeys(run.stage for run in told):
        positions = [n for n, run in enumerate(told) if run.stage == stage]
        past, before = [told[n] for n in positions], [verdicts[n] for n in positions]
        next_run = replace(at_scale(past[-1], scale), verdict=verdicts[-1])
        found.append(forecast_stage(stage, past, before, next_run, limits or Limits()))
    return found


def forecast_stage(
    stage: str, past: Sequence[StageRun], verdicts: Sequence[str | None], next_run: Next, limits: Limits
) -> StageForecast:
    """The forecast for a run of which `next_run` is known.

    Args:
        stage: its name.
        past: runs of it that tell something, the oldest first.
        verdicts: the gate's verdict before each.
        next_run: the run to forecast.
        limits: what it may take.
    """
    counts = len(past), sum(run.synthetic for run in past)
    if len(past) < MIN_RUNS:
        why = f"{len(past)} past runs, and {MIN_RUNS} are needed"
        return StageForecast(stage, *counts, unknown=why)
    fails = chance_of_failure(past_of(past, verdicts), next_run)
    time = _predicted(past, next_run, "seconds", TIME_SLOPE)
    memory = _predicted(past, next_run, "memory_bytes", MEMORY_SLOPE)
    overtime = _overrun(time, limits.seconds, "time", units.seconds)
    overmemory = _overrun(memory, limits.memory_bytes, "memory", units.byte_size)
    bad = _either([chance for chance in (fails, overtime, overmemory) if chance is not None])
    return StageForecast(stage, *counts, None, bad, fails, overtime, overmemory, _range(time), _range(memory))


def _predicted(past: Sequence[StageRun], next_run: Next, what: str, slope: float) -> Prediction | None:
    """The prediction from runs that ended; those that were cut short join where they had already come further."""
    ages = {id(run): 0.5 ** (age / HALF_LIFE_RUNS) for age, run in enumerate(reversed(past))}
    done = [run for run in past if run.outcome == "done" and getattr(run, what)]
    if len(done) < MIN_RUNS:
        return None
    measure = next(
        (m for m in ("bytes_in", "rows_in") if getattr(next_run, m) and all(getattr(r, m) for r in done)), ""
    )

    def fit(runs: Sequence[StageRun], size: float) -> Prediction:
        sizes = [float(getattr(run, measure)) for run in runs] if measure else None
        return predict(sizes, [getattr(run, what) for run in runs], [ages[id(run)] for run in runs], size, slope)

    cut = [r for r in past if r.outcome != "done" and getattr(r, what) and (not measure or getattr(r, measure))]
    further = [run for run in cut if getattr(run, what) > fit(done, getattr(run, measure, 1.0)).quantile(0.5)]
    return fit([*done, *further], float(getattr(next_run, measure, 1.0)))


def _overrun(made: Prediction | None, limit: float | None, what: str, unit: object) -> Chance | None:
    if made is None or limit is None:
        return None
    said = unit if callable(unit) else str
    middle, low, high = (said(made.quantile(p)) for p in (0.5, 0.05, 0.95))
    likely = f"{middle} of {what} are likely (90 %: {low} to {high}), and the limit is {said(limit)}"
    grew = () if made.slope is None else (f"{what} grew as the input to the power of {made.slope:.2f}",)
    reasons = (likely, *grew)
    return Chance(made.above(limit), *made.above_interval(limit), reasons)


def _either(chances: Sequence[Chance]) -> Chance:
    """That at least one comes true, as if none had to do with another; the reasons of the largest one first."""
    value, low, high = (
        1 - math.prod(1 - getattr(chance, end) for chance in chances) for end in ("value", "low", "high")
    )
    ordered = sorted(chances, key=lambda chance: -chance.value)
    return Chance(value, low, high, tuple(reason for chance in ordered for reason in chance.reasons))


def _range(made: Prediction | None) -> Range | None:
    return None if made is None else Range(*(made.quantile(p) for p in (0.5, 0.05, 0.95)))


def _verdicts_before(runs: Sequence[StageRun]) -> list[str | None]:
    """The gate's last verdict before each run, and after the last one: one more than there are runs."""
    found: list[str | None] = [None]
    for run in runs:
        found.append(run.verdict if run.stage == "gate" and run.verdict is not None else found[-1])
    return found
