"""Token buckets: the wait they tell is exact, and over any minute no more than two minutes' worth goes through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.serve.rate_limit import RateLimit
from tests.serve.clock import Clock


def test_the_wait_is_exact() -> None:
    clock = Clock()
    limit = RateLimit(30, clock)
    limit.take(30)
    assert limit.wait_s(1) == pytest.approx(2.0)
    clock.now += 1.9
    assert limit.wait_s(1) == pytest.approx(0.1)
    clock.now += 0.2
    assert limit.wait_s(1) == 0


def test_no_more_than_a_minute_is_saved_up() -> None:
    clock = Clock()
    limit = RateLimit(60, clock)
    clock.now += 3600
    limit.take(60)
    assert limit.wait_s(1) == pytest.approx(1.0)


def test_what_is_given_back_can_be_taken_again() -> None:
    clock = Clock()
    limit = RateLimit(60, clock)
    limit.take(60)
    limit.give_back(25)
    assert limit.wait_s(25) == 0 and limit.wait_s(26) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 20)), max_size=60))
def test_a_minute_never_sees_more_than_two_minutes_worth(asked: list[tuple[float, int]]) -> None:
    clock, taken = Clock(), []
    limit = RateLimit(20, clock)
    for pause, amount in asked:
        clock.now += pause
        if limit.wait_s(amount) == 0:
            limit.take(amount)
            taken.append((clock.now, amount))
    for start, _ in taken:
        assert sum(amount for at, amount in taken if start <= at <= start + 60) <= 40 + 1e-6
