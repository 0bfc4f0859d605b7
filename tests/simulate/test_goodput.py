from __future__ import annotations

import numpy as np
import pytest

from elasmo.simulate.goodput import Failures, goodput


def test_shares_add_up() -> None:
    made = goodput(16_384, Failures())
    assert made.useful + made.checkpoints + made.redone + made.recovery + made.shrunk == pytest.approx(1)


def test_the_interval_is_the_one_that_costs_least() -> None:
    """Against a scan of intervals in the first-order formula."""
    failures, between = Failures(checkpoint_s=30), 50_700 * 3600 / 1024
    scan = np.arange(60, 20_000)
    best = scan[np.argmin(30 / scan + scan / 2 / between)]
    assert goodput(1024, failures).interval_s == pytest.approx(best, rel=0.01)


def test_a_simulated_run_has_the_same_share() -> None:
    failures = Failures(checkpoint_s=20)
    made, random = goodput(4096, failures), np.random.default_rng(0)
    between = failures.mtbf_h * 3600 / 4096
    clock = done = 0.0
    while clock < 3e8:
        alive = random.exponential(between)
        rounds = int(alive // (made.interval_s + failures.checkpoint_s))
        done += rounds * made.interval_s
        clock += alive + failures.restart_s + failures.replace_s
    assert made.useful == pytest.approx(done / clock, abs=0.01)


def test_shrinking_beats_waiting_and_more_accelerators_fail_more() -> None:
    assert goodput(2048, Failures(), elastic=True).useful > goodput(2048, Failures()).useful
    assert goodput(16_384, Failures()).useful < goodput(2048, Failures()).useful


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="accelerators=0"):
        goodput(0, Failures())
