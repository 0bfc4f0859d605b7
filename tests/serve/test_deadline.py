"""Deadlines: one budget over many waits, and a cancelled wait is cancelled for real."""

from __future__ import annotations

import asyncio

import pytest

from elasmo.serve.deadline import Deadline, DeadlineExceeded


def test_waits_share_one_budget() -> None:
    async def main() -> None:
        deadline = Deadline(0.05)
        await deadline.within(asyncio.sleep(0.02), "a")
        with pytest.raises(DeadlineExceeded) as caught:
            await deadline.within(asyncio.sleep(0.2), "the second thing")
        assert caught.value.waiting_for == "the second thing"
        assert deadline.remaining_s() == 0.0

    asyncio.run(main())


def test_the_awaited_work_is_cancelled() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with pytest.raises(DeadlineExceeded):
            await Deadline(0.01).within(work(), "work")
        assert cancelled.is_set()

    asyncio.run(main())


def test_a_timeout_of_the_work_itself_is_not_the_deadlines() -> None:
    async def main() -> None:
        async def work() -> None:
            raise TimeoutError("its own")

        with pytest.raises(TimeoutError, match="its own"):
            await Deadline(10).within(work(), "work")

    asyncio.run(main())
