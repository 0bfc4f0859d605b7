"""One decision from what every rank saw: not finite on any rank, a spike, a budget, and what was decided before."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasmo.config import FaultsConfig
from elasmo.train.fault_policy import RankView, decide, robust_z

GOOD = RankView(8.0, 1.0)
FLAT = [2.0 + 0.1 * (step % 3) for step in range(30)]


@pytest.mark.parametrize("action", ["stop", "skip", "rollback"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_on_one_rank_decides_for_all(bad: float, action: str) -> None:
    """WeatherGenerator#2724: NaN on rank 2 only."""
    ranks = [GOOD, GOOD, RankView(bad, math.nan), GOOD]
    verdict = decide(7, ranks, 16, FLAT, {}, FaultsConfig(on_non_finite=action))
    assert (verdict.action, verdict.reason) == (action, "the loss on rank 2 is not finite")


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_a_gradient_norm_that_is_not_finite_counts_like_a_loss(norm: float) -> None:
    verdict = decide(7, [GOOD, RankView(8.0, norm)], 8, FLAT, {}, FaultsConfig(on_non_finite="skip"))
    assert (verdict.action, verdict.reason) == ("skip", "the gradient norm is not finite")


def test_by_default_a_fault_stops_and_no_spike_is_looked_for() -> None:
    assert decide(7, [RankView(math.nan, 1.0)], 8, (), {}, FaultsConfig()).action == "stop"
    verdict = decide(7, [RankView(1e6, 1.0)], 8, FLAT, {}, FaultsConfig())
    assert (verdict.action, verdict.loss) == ("go", 1e6 / 8)


def test_a_spike_is_measured_over_the_whole_batch_and_against_the_window() -> None:
    faults = FaultsConfig(spike_z=10.0, on_spike="rollback")
    # One rank's part is ten times the others', the batch as a whole is ordinary.
    assert decide(31, [RankView(20.0, 1.0), RankView(2.0, 1.0)], 10, FLAT, {}, faults).action == "go"
    verdict = decide(31, [RankView(40.0, 1.0), RankView(20.0, 1.0)], 10, FLAT, {}, faults)
    assert verdict.action == "rollback" and verdict.loss == 6.0
    assert verdict.reason == "the loss 6 is 26.3 robust deviations above the last 30"
    # A fall is no spike, and a short window judges nothing.
    assert decide(31, [RankView(0.0, 1.0)], 10, FLAT, {}, faults).action == "go"
    assert decide(6, [RankView(1e9, 1.0)], 10, FLAT[:7], {}, faults).action == "go"


def test_the_z_score_is_that_of_the_median_absolute_deviation() -> None:
    window = np.random.default_rng(0).normal(5.0, 0.5, 64)
    deviation = 1.4826 * np.median(np.abs(window - np.median(window)))
    assert robust_z(7.0, window.tolist()) == pytest.approx((7.0 - np.median(window)) / deviation)
    # An outlier that was let into the window does not hide the next one, as it would in a standard deviation.
    assert robust_z(50.0, [*window.tolist(), 1000.0]) > 50
    # A flat curve: one percent of it is the least deviation.
    assert robust_z(2.2, [2.0] * 20) == pytest.approx(10.0)


def test_a_step_that_was_skipped_once_is_skipped_again_whatever_it_looks_like_now() -> None:
    verdict = decide(7, [GOOD], 8, FLAT, {7: "a bit flipped"}, FaultsConfig())
    assert (verdict.action, verdict.reason, verdict.known, verdict.loss) == ("skip", "a bit flipped", True, 1.0)


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_the_budget_stops_the_run_and_says_so(action: str) -> None:
    faults = FaultsConfig(on_non_finite=action, max_skips=2)
    bad = [RankView(math.nan, math.nan)]
    assert decide(9, bad, 8, (), {1: "a"}, faults).action == action
    verdict = decide(9, bad, 8, (), {1: "a", 5: "b"}, faults)
    assert verdict.action == "stop"
    assert verdict.reason == "the loss on rank 0 is not finite, and train.faults.max_skips=2 steps were skipped"
    assert decide(5, bad, 8, (), {1: "a", 5: "b"}, faults).action == "skip"  # of the two
