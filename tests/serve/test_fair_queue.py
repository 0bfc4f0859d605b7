"""The queue: first come, first served within a key; between keys whoever has least for its weight."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from elasmo.serve.fair_queue import Waiting, gives_way, next_in_line


def asks(*keys: str, **weights: float) -> list[Waiting]:
    return [Waiting(key, weights.get(key, 1.0), 1) for key in keys]


def served(waiting: list[Waiting], places: int) -> Counter[str]:
    """Places by key when every running request stays."""
    running: Counter[str] = Counter()
    left = list(waiting)
    for _ in range(places):
        at = next_in_line(left, running)
        if at is None:
            break
        running[left.pop(at).key] += 1
    return running


def test_nobody_waits() -> None:
    assert next_in_line([], {"a": 3}) is None


def test_one_key_goes_in_order_of_arrival() -> None:
    assert next_in_line(asks("a", "a", "a"), {"a": 5}) == 0


def test_a_key_with_nothing_running_goes_before_one_that_came_first() -> None:
    assert next_in_line(asks("a", "a", "b"), {"a": 1}) == 2
    assert next_in_line(asks("a", "a", "b"), {}) == 0


def test_places_are_shared_by_weight() -> None:
    waiting = asks(*"a" * 100, *"b" * 100, b=3.0)
    assert served(waiting, 40) == Counter(a=10, b=30)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(1, 60))
def test_no_key_has_two_more_than_one_that_still_waits(keys: list[str], places: int) -> None:
    """Max-min fairness, checked against its definition."""
    given_out = served(asks(*keys), places)
    asked = Counter(keys)
    assert sum(given_out.values()) == min(places, len(keys))
    for key in asked:
        if given_out[key] < asked[key]:
            assert all(given_out[other] <= given_out[key] + 1 for other in asked)


def test_the_last_request_of_the_greediest_key_gives_way() -> None:
    waiting = asks("a", "b", "a", "a", "b")
    assert gives_way(waiting, Waiting("c", 1.0, 1)) == 3
    assert gives_way(waiting, Waiting("a", 1.0, 1)) is None


def test_nobody_gives_way_to_a_key_that_would_have_as_much() -> None:
    assert gives_way(asks("a", "b"), Waiting("c", 1.0, 1)) is None
    assert gives_way(asks("a", "a", "b"), Waiting("b", 1.0, 1)) is None
    assert gives_way(asks("a", "a", "b", b=2.0), Waiting("b", 2.0, 1)) == 1
    assert gives_way([], Waiting("c", 1.0, 1)) is None
