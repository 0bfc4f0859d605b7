"""An iterator that gives nothing for too long ends in an error; what it gave is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from elasmo.sources.deadline import AHEAD, within_deadline


def late(last: int | None, count: int) -> Exception:
    return TimeoutError(f"after {last}, {count} items")


def test_items_come_in_order_and_the_thread_ends() -> None:
    assert list(within_deadline(iter(range(5 * AHEAD)), 30, late)) == list(range(5 * AHEAD))
    assert "elasmo source" not in {thread.name for thread in threading.enumerate()}


def test_a_blocked_iterator_ends_in_an_error_that_counts_what_came() -> None:
    free = threading.Event()

    def items() -> Iterator[int]:
        yield from (1, 2)
        free.wait()

    found = []
    with pytest.raises(TimeoutError, match="after 2, 2 items"):
        for item in within_deadline(items(), 0.1, late):
            found.append(item)
    assert found == [1, 2]
    free.set()


def test_an_iterator_that_comes_back_too_late_is_closed_before_its_next_item_counts() -> None:
    free, closed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            free.wait()
            yield 1
            raise AssertionError("it went on")
        finally:
            closed.set()

    with pytest.raises(TimeoutError, match="after None, 0 items"):
        next(within_deadline(items(), 0.05, late))
    free.set()
    assert closed.wait(10)


def test_a_slow_caller_is_no_slow_source() -> None:
    for item in within_deadline(iter(range(3 * AHEAD)), 0.2, late):
        if item in (0, 2 * AHEAD):
            time.sleep(0.4)


def test_what_the_iterator_raises_comes_behind_its_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("inside")

    read = within_deadline(items(), 30, late)
    assert next(read) == 1
    with pytest.raises(KeyError, match="inside"):
        next(read)


def test_a_caller_that_stops_closes_the_iterator() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.set()

    read = within_deadline(items(), 30, late)
    assert next(read) == 0
    read.close()  # type: ignore[attr-defined]
    assert closed.wait(10)


def test_without_a_limit_nothing_is_started() -> None:
    items = iter([1])
    assert within_deadline(items, None, late) is items
