"""Admission: hard bounds on what is in flight, a fair queue before them, and refusals that say when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elasmo.config import KeyConfig
from elasmo.serve.admission import Admission, Place
from elasmo.serve.callers import Caller
from elasmo.serve.deadline import Deadline
from elasmo.serve.openai_errors import ApiError
from tests.serve.clock import Clock

ANYBODY = Caller("anybody")


def key(name: str, **limits: Any) -> Caller:
    return Caller(name, KeyConfig(sha256="0" * 64, **limits))


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


async def started(admission: Admission, caller: Caller = ANYBODY, completions: int = 1, size: int = 0) -> Place:
    place = admission.enter(caller, completions)
    await admission.turn(place, size, Deadline(5))
    return place


def in_line(admission: Admission, caller: Caller, size: int = 0, seconds: float = 5.0) -> asyncio.Task[Place]:
    """A request that waits, and gives its place back when its turn did not come, as every request does."""

    async def wait() -> Place:
        place = admission.enter(caller, 1)
        try:
            await admission.turn(place, size, Deadline(seconds))
        except BaseException:
            admission.leave(place)
            raise
        return place

    return asyncio.create_task(wait())


def test_choices_count_one_by_one_and_places_come_back() -> None:
    admission = Admission(3, 9, 0)
    places = [admission.enter(ANYBODY, 2), admission.enter(ANYBODY, 1)]
    with pytest.raises(ApiError) as caught:
        admission.enter(ANYBODY, 1)
    assert (caught.value.status, caught.value.code) == (503, "overloaded")
    for place in places * 2:  # leaving twice is leaving once
        admission.leave(place)
    assert (admission.in_flight, ANYBODY.in_flight, admission.refused) == (0, 0, 1)


def test_retry_after_is_the_mean_duration_in_whole_seconds() -> None:
    clock = Clock()
    admission = Admission(1, 1, 0, clock)

    async def work() -> None:
        for _ in range(40):
            place = await started(admission)
            clock.now += 6.5
            admission.leave(place)
        admission.enter(ANYBODY, 1)
        with pytest.raises(ApiError) as caught:
            admission.enter(ANYBODY, 1)
        assert caught.value.headers["Retry-After"] == "7"

    run(work)


def test_more_choices_than_places_are_a_bad_request() -> None:
    for caller in (ANYBODY, key("a", max_in_flight=2)):
        with pytest.raises(ApiError) as caught:
            Admission(2 if caller is ANYBODY else 9, 9, 0).enter(caller, 3)
        assert (caught.value.status, caught.value.param) == (400, "n")


def test_a_keys_own_limit_is_429_and_leaves_room_for_others() -> None:
    admission, greedy = Admission(9, 9, 0), key("greedy", max_in_flight=2)
    admission.enter(greedy, 2)
    with pytest.raises(ApiError) as caught:
        admission.enter(greedy, 1)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert int(caught.value.headers["Retry-After"]) >= 1
    admission.enter(key("other"), 1)


def test_bytes_wait_for_room_and_count_a_while_after_they_were_given_back() -> None:
    clock = Clock()
    admission = Admission(9, 9, 100, clock, freed_s=1.0)

    async def work() -> None:
        first = await started(admission, size=60)
        second = in_line(admission, ANYBODY, 60)
        third = in_line(admission, ANYBODY, 1)  # there would be room, but nobody overtakes
        await asyncio.sleep(0)
        assert (admission.running, admission.waiting) == (1, 2)
        admission.leave(first)
        await asyncio.sleep(0)
        assert (admission.running, admission.store_bytes) == (0, 60)
        clock.now += 0.9
        admission.leave(admission.enter(ANYBODY, 1))
        await asyncio.sleep(0)
        assert admission.running == 0
        clock.now += 0.2
        admission.leave(admission.enter(ANYBODY, 1))
        places = [await second, await third]
        assert admission.store_bytes == 61
        for place in places:
            admission.leave(place)
        clock.now += 1.1
        assert admission.store_bytes == 0

    run(work)


def test_freed_bytes_wake_the_queue_by_themselves() -> None:
    async def work() -> None:
        admission = Admission(9, 9, 100, freed_s=0.05)
        admission.leave(await started(admission, size=100))
        admission.leave(await started(admission, size=100))

    run(work)


def test_more_bytes_than_ever_fit_are_a_bad_request() -> None:
    async def work() -> None:
        admission = Admission(9, 9, 100)
        await started(admission, size=100)
        with pytest.raises(ApiError) as caught:
            await started(admission, size=101)
        assert caught.value.status == 400

    run(work)


def test_a_request_larger_than_the_running_limit_runs_alone() -> None:
    async def work() -> None:
        admission = Admission(20, 2, 0)
        large = await started(admission, completions=7)
        small = in_line(admission, ANYBODY)
        await asyncio.sleep(0)
        assert admission.running == 7
        admission.leave(large)
        await small
        assert admission.running == 1

    run(work)


def test_a_flood_of_one_key_does_not_delay_another() -> None:
    async def work() -> None:
        admission, flood, other = Admission(99, 2, 0), key("flood"), key("other")
        running = [await started(admission, flood) for _ in range(2)]
        crowd = [in_line(admission, flood) for _ in range(50)]
        await asyncio.sleep(0)
        late = in_line(admission, other)
        await asyncio.sleep(0)
        admission.leave(running[0])
        await asyncio.sleep(0)
        assert late.done() and not any(task.done() for task in crowd)
        for task in crowd:
            task.cancel()

    run(work)


def test_a_full_queue_makes_room_for_a_key_that_has_less_in_it() -> None:
    async def work() -> None:
        admission, flood, other = Admission(5, 1, 0), key("flood"), key("other")
        await started(admission, flood)
        crowd = [in_line(admission, flood) for _ in range(4)]
        await asyncio.sleep(0)
        admission.check(other)
        with pytest.raises(ApiError):
            admission.check(flood)
        late = in_line(admission, other)
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await crowd[-1]
        assert caught.value.status == 503 and "'flood'" in caught.value.message
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert (admission.in_flight, admission.waiting, flood.in_flight, other.in_flight) == (5, 4, 4, 1)
        for task in (late, *crowd):
            task.cancel()

    run(work)


def test_a_turn_that_does_not_come_in_time_is_told_and_leaves_nothing() -> None:
    async def work() -> None:
        admission = Admission(9, 1, 0)
        first = await started(admission)
        with pytest.raises(ApiError) as caught:
            await in_line(admission, ANYBODY, seconds=0.02)
        assert caught.value.status == 503 and "Retry-After" in caught.value.headers
        admission.leave(first)
        assert (admission.in_flight, admission.running, admission.waiting) == (0, 0, 0)

    run(work)


def test_those_who_leave_the_queue_do_not_hold_up_those_behind_them() -> None:
    """sglang#8177: requests whose clients had given up kept their places, and patient ones never had a turn."""

    async def work() -> None:
        admission = Admission(200, 1, 0)
        first = await started(admission)
        impatient = [in_line(admission, ANYBODY) for _ in range(100)]
        patient = [in_line(admission, ANYBODY) for _ in range(20)]
        await asyncio.sleep(0)
        admission.leave(first)  # the first of them has its turn in the very moment in which it leaves
        for task in impatient:
            task.cancel()
        await asyncio.gather(*impatient, return_exceptions=True)
        for task in patient:
            admission.leave(await asyncio.wait_for(task, 1))
        assert (admission.in_flight, admission.running, admission.waiting) == (0, 0, 0)

    run(work)
