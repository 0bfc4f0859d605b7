"""The chance that a stage fails: closed forms, reasons, and calibration over simulated histories."""

from __future__ import annotations

import numpy as np
import pytest

from elasmo.stages.failure_rate import HALF_LIFE_RUNS, POOLED, PRIOR, Next, Past, chance_of_failure, posterior
from tests.stages.histories import brier, reliability

EDGES = (0.0, 0.03, 0.06, 0.1, 0.2, 0.4, 1.01)


def past(*bad: bool, size: float = 1e9, retries: int = 0) -> list[Past]:
    return [Past(size, None, retries, None, fell) for fell in bad]


def test_without_features_it_is_the_beta_binomial_of_the_counts_by_age() -> None:
    a, b = posterior(past(True, False, False), Next(), ())
    weights = [0.5 ** (age / HALF_LIFE_RUNS) for age in (2, 1, 0)]
    assert (a, b) == pytest.approx((PRIOR[0] + weights[0], PRIOR[1] + weights[1] + weights[2]))


def test_runs_that_are_all_alike_pool_to_the_rate() -> None:
    runs = past(*[False] * 9, True)
    a, b = posterior(runs, Next(bytes_in=1e9))
    base = posterior(runs, Next(), ())
    weights = sum(0.5 ** (age / HALF_LIFE_RUNS) for age in range(10))
    assert a == pytest.approx(POOLED * base[0] / sum(base) + 1) and a + b == pytest.approx(POOLED + weights)


def test_a_size_that_failed_before_raises_the_chance_and_is_the_reason() -> None:
    runs = [Past(size, None, 0, None, size > 3e9) for size in (1e9, 1e9, 8e9, 1e9, 1e9, 8e9, 1e9, 1e9)]
    large, small = (chance_of_failure(runs, Next(bytes_in=size)) for size in (8e9, 1e9))
    assert small.value < 0.15 < 0.5 < large.value
    assert large.reasons[0] == "2 of 8 runs ended badly"
    assert large.reasons[1].startswith("2 of 2 runs of about its size ended badly, which raises it by ")
    assert small.reasons[1].startswith("0 of 6 runs of about its size ended badly, which lowers it by ")
    assert large.low < large.value < large.high


def test_a_retry_is_held_against_retries_and_drift_against_the_verdict() -> None:
    calm, again = past(*[False] * 8), past(True, True, True, retries=1)
    retried = chance_of_failure([*calm, *again], Next(bytes_in=1e9, retries=1))
    fresh = chance_of_failure([*calm, *again], Next(bytes_in=1e9))
    assert retried.value > fresh.value + 0.2 and any("3 of 3 retries ended badly" in r for r in retried.reasons)
    drifted = [Past(1e9, None, 0, "warn", n % 2 == 0) for n in range(6)] + [Past(1e9, None, 0, "pass", False)] * 6
    after = chance_of_failure(drifted, Next(bytes_in=1e9, verdict="warn"))
    assert any("3 of 6 runs after the verdict warn ended badly" in reason for reason in after.reasons)


def test_synthetic_histories_of_one_rate_are_calibrated() -> None:
    """Each history has a rate of its own, drawn from the prior; features are there, but mean nothing."""
    generator = np.random.default_rng(1)
    said, came = list[float](), list[bool]()
    for _ in range(4000):
        rate, count = generator.beta(*PRIOR), int(generator.integers(5, 40))
        sizes = np.exp(generator.normal(0, 0.7, count + 1)) * 1e9
        bad = generator.random(count + 1) < rate
        runs = [Past(s, None, 0, None, bool(b)) for s, b in zip(sizes[:-1], bad[:-1], strict=True)]
        a, b = posterior(runs, Next(bytes_in=float(sizes[-1])))
        said.append(a / (a + b))
        came.append(bool(bad[-1]))
    assert np.mean(said) == pytest.approx(np.mean(came), abs=3 * np.sqrt(np.mean(came) / len(came)))
    for count, stated, seen, error in reliability(said, came, EDGES):
        assert abs(stated - seen) < 3 * error + 0.02, (count, stated, seen)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.6])
def test_a_rate_that_the_prior_does_not_expect_is_still_met(rate: float) -> None:
    generator = np.random.default_rng(2)
    said = []
    for _ in range(400):
        runs = [Past(1e9, None, 0, None, bool(bad)) for bad in generator.random(30) < rate]
        a, b = posterior(runs, Next(bytes_in=1e9))
        said.append(a / (a + b))
    assert np.mean(said) == pytest.approx(rate, abs=0.03 + 0.1 * rate)


def test_where_size_decides_it_beats_the_plain_rate_and_stays_calibrated() -> None:
    generator = np.random.default_rng(3)
    said, plain, came = list[float](), list[float](), list[bool]()
    for _ in range(1500):
        sizes = np.exp(generator.normal(0, 1.0, 31)) * 1e9
        bad = generator.random(31) < 0.6 / (1 + (2e9 / sizes) ** 3)
        runs = [Past(s, None, 0, None, bool(b)) for s, b in zip(sizes[:-1], bad[:-1], strict=True)]
        for found, features in ((said, ("size", "retry", "gate")), (plain, ())):
            a, b = posterior(runs, Next(bytes_in=float(sizes[-1])), features)
            found.append(a / (a + b))
        came.append(bool(bad[-1]))
    assert brier(said, came) < 0.9 * brier(plain, came)
    for count, stated, seen, error in reliability(said, came, EDGES):
        assert abs(stated - seen) < 3 * error + 0.05, (count, stated, seen)


def test_the_interval_holds_the_true_rate_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    held = 0
    for _ in range(300):
        rate = generator.beta(*PRIOR)
        runs = [Past(1e9, None, 0, None, bool(bad)) for bad in generator.random(25) < rate]
        chance = chance_of_failure(runs, Next(bytes_in=1e9))
        held += chance.low <= rate <= chance.high
    assert 0.8 < held / 300 < 0.98


def test_when_the_rate_has_changed_the_decay_follows() -> None:
    generator = np.random.default_rng(5)
    said = []
    for _ in range(200):
        bad = np.concatenate([generator.random(60) < 0.02, generator.random(20) < 0.5])
        a, b = posterior([Past(1e9, None, 0, None, bool(x)) for x in bad], Next(bytes_in=1e9))
        said.append(a / (a + b))
    assert np.mean(said) > 0.25  # without decay it would be 0.14
