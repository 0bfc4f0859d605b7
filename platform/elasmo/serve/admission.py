"""Admission: how many completions an ingress keeps in flight before it answers 503, decided before any work is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from elasmo.serve.openai_errors import invalid_request, overloaded


class Admission:
    """Counts completions in flight in one ingress replica.

    Args:
        limit: most completions in flight; a request with `n` choices counts n times.
        clock: seconds, monotonic.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self.limit = limit
        self.in_flight = 0
        self.refused = 0
        self._clock = clock
        self._seconds: deque[float] = deque([1.0], maxlen=32)

    @contextmanager
    def admit(self, completions: int) -> Iterator[None]:
        """Holds `completions` places.

        Raises:
            ApiError: 503 with Retry-After, the mean duration of the latest requests (1 to 30 s); 400 for more than
                could ever be admitted.
        """
        if completions > self.limit:
            raise invalid_request(f"n is {completions}; this server runs at most serve.max_queue={self.limit}.", "n")
        if self.in_flight + completions > self.limit:
            self.refused += 1
            retry_after_s = min(30.0, max(1.0, sum(self._seconds) / len(self._seconds)))
            raise overloaded(self.in_flight, self.limit, retry_after_s)
        began = self._clock()
        self.in_flight += completions
        try:
            yield
        finally:
            self.in_flight -= completions
            self._seconds.append(self._clock() - began)
