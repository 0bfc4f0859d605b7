"""A token bucket: so much a minute, saved up for one minute at most, and the exact time until there is enough."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class RateLimit:
    """What one key may spend of something.

    Args:
        per_minute: gained in a minute, and the most there can be.
        clock: seconds, monotonic.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._seen = clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken, 0 when it can be now. More than `per_minute` never can."""
        return max(0.0, (amount - self._now()) * 60 / self.per_minute)

    def take(self, amount: float) -> None:
        """Spends an amount; ask `wait_s` first."""
        self._left = self._now() - amount

    def give_back(self, amount: float) -> None:
        """Returns what was taken and not used."""
        self._left = min(float(self.per_minute), self._now() + amount)

    def _now(self) -> float:
        now = self._clock()
        self._left = min(float(self.per_minute), self._left + (now - self._seen) * self.per_minute / 60)
        self._seen = now
        return self._left
