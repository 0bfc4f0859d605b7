"""A clock that tests turn by hand."""

from __future__ import annotations


class Clock:
    """Seconds, at 0 until `now` is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
