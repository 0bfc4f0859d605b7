"""The forecast of a dataset's stages: what is unknown, what counts, and calibration over whole synthetic histories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elasmo.stages.failure_rate import at_scale
from elasmo.stages.forecast import MIN_RUNS, Limits, StageForecast, forecast, forecast_stage, telling
from elasmo.stages.stage_run import StageRun
from tests.stages.histories import brier, history, reliability

GIB = 2**30


def one(runs: list[StageRun], limits: Limits | None = None, scale: float = 1.0) -> StageForecast:
    (made,) = forecast(runs, limits, scale, synthetic=True)
    return made


def test_below_the_stated_number_of_runs_it_is_unknown() -> None:
    runs = history(np.random.default_rng(0), MIN_RUNS)
    made = one(runs[:-1], Limits(60, GIB))
    assert made.bad is None and made.unknown == "4 past runs, and 5 are needed"
    assert one(runs, Limits(60, GIB)).bad is not None


def test_runs_that_say_nothing_do_not_count() -> None:
    run = StageRun("silver", outcome="done", seconds=1.0)
    interrupted = replace(run, outcome="killed", error="interrupted by the user")
    mute = [replace(run, reused=True), interrupted, replace(run, outcome="running"), replace(run, synthetic=True)]
    assert telling([run, *mute]) == [run]
    assert telling([run, *mute], synthetic=True) == [run, mute[3]]


def test_synthetic_runs_are_counted_apart_and_only_when_asked_for() -> None:
    runs = history(np.random.default_rng(0), 8)
    assert forecast(runs) == []
    assert (one(runs).runs, one(runs).synthetic_runs) == (8, 8)
    real = [replace(run, synthetic=False) for run in runs[:6]]
    mixed = one([*real, *runs[6:]])
    assert (mixed.runs, mixed.synthetic_runs) == (8, 2)


def test_a_larger_input_overruns_and_the_reasons_say_by_how_much() -> None:
    runs = history(np.random.default_rng(1), 20)
    runs.append(replace(runs[0], bytes_in=10**9, rows_in=10**5, seconds=60.0, memory_bytes=4 * 10**9))
    limits = Limits(seconds=120.0, memory_bytes=8e9)
    same, large = one(runs, limits), one(runs, limits, scale=4.0)
    assert same.overtime is not None and same.overtime.value < 0.01
    assert large.overtime is not None and large.overtime.value > 0.99
    assert large.seconds is not None and large.seconds.expected == pytest.approx(240, rel=0.1)
    assert large.memory_bytes is not None and large.memory_bytes.expected == pytest.approx(8e9, rel=0.1)
    assert large.overmemory is not None and 0.2 < large.overmemory.value < 0.8
    assert large.bad is not None and large.bad.value > 0.99
    assert (
        "of time are likely (90 %: " in large.overtime.reasons[0] and "limit is 2 min 0 s" in large.overtime.reasons[0]
    )
    assert large.bad.reasons[0] == large.overtime.reasons[0]


def test_without_a_limit_nothing_overruns_it() -> None:
    made = one(history(np.random.default_rng(2), 10))
    assert made.overtime is None and made.overmemory is None and made.seconds is not None
    assert made.bad is not None and made.fails is not None and made.bad.value == pytest.approx(made.fails.value)


def test_stages_come_in_their_order_and_each_has_its_own_history() -> None:
    runs = history(np.random.default_rng(3), 6)
    broken = [replace(run, stage="gold", outcome="failed", error="no space left") for run in runs]
    both = sorted([*runs, *broken], key=lambda run: run.began)
    silver, gold = forecast(both, synthetic=True)
    assert (silver.stage, gold.stage) == ("silver", "gold")
    assert silver.fails is not None and gold.fails is not None
    assert silver.fails.value < 0.2 < 0.5 < gold.fails.value
    assert gold.seconds is None  # none of its runs has ended well


def test_a_killed_run_that_had_come_further_raises_the_prediction() -> None:
    runs = [replace(run, bytes_in=10**9, memory_bytes=4 * GIB) for run in history(np.random.default_rng(4), 10)]
    killed = replace(runs[-1], outcome="killed", error="its process was killed", memory_bytes=12 * GIB)
    early = replace(killed, memory_bytes=GIB)
    limits = Limits(memory_bytes=8 * GIB)
    calm, cut, further = (one([*runs, extra], limits).overmemory for extra in (runs[0], early, killed))
    assert calm is not None and cut is not None and further is not None
    assert further.value > 10 * max(calm.value, cut.value)


def test_synthetic_histories_are_calibrated_as_a_whole() -> None:
    """The chance that a run fails or overruns either limit, stated before it, equals how often it did."""
    generator = np.random.default_rng(9)
    said, came = list[float](), list[bool]()
    for _ in range(220):
        rate, count = float(generator.beta(0.5, 4.5)), int(generator.integers(6, 25))
        slope, noise = float(generator.normal(1, 0.2)), float(np.exp(generator.normal(np.log(0.1), 0.4)))
        *past, last = history(generator, count + 1, lambda size, rate=rate: rate, slope, noise)  # type: ignore[misc]
        expected = 60 * (last.bytes_in or 0) ** slope / 1e9**slope
        limits = Limits(
            expected * float(np.exp(generator.normal(0.2, 2 * noise))),
            4e9 * ((last.bytes_in or 0) / 1e9) ** 0.5 * float(np.exp(generator.normal(0.2, 2 * noise))),
        )
        next_run = replace(at_scale(last, 1.0), retries=0)
        made = forecast_stage("silver", past, [None] * len(past), next_run, limits)
        if made.bad is None or made.overtime is None or made.overmemory is None:
            continue
        assert limits.seconds is not None and limits.memory_bytes is not None
        said.append(made.bad.value)
        over = (last.seconds or 0) > limits.seconds or (last.memory_bytes or 0) > limits.memory_bytes
        came.append(last.outcome != "done" or over)
    assert len(said) > 150 and 0.2 < np.mean(came) < 0.8
    for number, stated, seen, error in reliability(said, came, (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.01)):
        assert abs(stated - seen) < 3 * error + 0.03, (number, stated, seen)
    base = float(np.mean(came))
    assert brier(said, came) < 0.6 * base * (1 - base)  # what always saying the frequency would get
