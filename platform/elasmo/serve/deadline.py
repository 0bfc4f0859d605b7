"""One deadline for one request: every wait takes what is left of it, so nothing waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class DeadlineExceeded(Exception):
    """The deadline passed.

    Attributes:
        waiting_for: what the request was waiting for, in words.
    """

    def __init__(self, waiting_for: str) -> None:
        super().__init__(waiting_for)
        self.waiting_for = waiting_for


class Deadline:
    """A point in time, `timeout_s` seconds after its creation, on this process's monotonic clock."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._at = clock() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._at - self._clock())

    async def within(self, awaitable: Awaitable[T], waiting_for: str) -> T:
        """The awaitable's result; it is cancelled when the deadline passes.

        Raises:
            DeadlineExceeded: with `waiting_for`.
        """
        timeout = asyncio.timeout(self.remaining_s())
        try:
            async with timeout:
                return await awaitable
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceeded(waiting_for) from None
            raise
