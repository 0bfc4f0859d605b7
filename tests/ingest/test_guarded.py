"""A function in a process that is ended: results in order, a stuck or a deadly item costs itself alone."""

from __future__ import annotations

import os
import signal
import time

import pytest

from elasmo.ingest.guarded import ITEMS_AT_ONCE, Guarded, Stuck


def length(item: bytes) -> int:
    return len(item)


def test_results_come_in_order_whatever_the_size_of_items() -> None:
    items = [b"x" * (number * 37 % 5000) for number in range(3 * ITEMS_AT_ONCE + 5)]
    with Guarded(length, 30) as guarded:
        assert list(guarded.map(items)) == [(item, len(item)) for item in items]
        assert list(guarded.map([b"abc"])) == [(b"abc", 3)]
        assert list(guarded.map([])) == []


def test_a_stuck_item_is_given_up_and_its_process_is_gone() -> None:
    def run(number: int) -> int:
        if number in (5, 70):
            time.sleep(3600)
        return os.getpid()

    begun = time.monotonic()
    with Guarded(run, 0.2) as guarded:
        found = [result for _, result in guarded.map(range(100))]
    assert time.monotonic() - begun < 10
    stuck = [number for number, result in enumerate(found) if isinstance(result, Stuck)]
    assert stuck == [5, 70] and found[5] == Stuck("took more than 0.2 s")
    for process in {result for result in found if isinstance(result, int)}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_an_item_that_takes_its_process_down_is_named_with_how() -> None:
    def run(number: int) -> int:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 3:
            os._exit(7)
        return number

    with Guarded(run, 30) as guarded:
        found = [result for _, result in guarded.map(range(5))]
    assert found == [0, Stuck("ended its process (SIGKILL)"), 2, Stuck("ended its process (exit 7)"), 4]


def test_what_the_function_raises_is_raised_here() -> None:
    def run(number: int) -> float:
        return 1 / number

    with Guarded(run, 30) as guarded, pytest.raises(ZeroDivisionError):
        list(guarded.map([1, 0, 1]))


def test_an_error_that_cannot_be_pickled_is_told_by_name() -> None:
    class Local(Exception):
        pass

    def run(_: int) -> None:
        raise Local("inside")

    with Guarded(run, 30) as guarded, pytest.raises(RuntimeError, match="Local: inside"):
        list(guarded.map([1]))


def test_an_abandoned_map_leaves_no_process() -> None:
    with Guarded(length, 30) as guarded:
        rows = guarded.map(b"abc" for _ in range(1000))
        assert next(rows) == (b"abc", 3)
        process = guarded._process
        assert process is not None and process.pid is not None
        pid = process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
