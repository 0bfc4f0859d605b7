"""Admission: how many completions, and how much KV, an ingress keeps in flight before it answers 503."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from elasmo.serve.openai_errors import ApiError, invalid_request, overloaded


class Admission:
    """Counts what the requests of one ingress replica hold.

    Args:
        limit: most completions in flight; a request with `n` choices counts n times.
        kv_limit_bytes: most KV owned at a time, so that it is refused before the object store spills it.
        clock: seconds, monotonic.
    """

    def __init__(self, limit: int, kv_limit_bytes: int, clock: Callable[[], float] = monotonic) -> None:
        self.limit = limit
        self.kv_limit_bytes = kv_limit_bytes
        self.in_flight = 0
        self.kv_bytes = 0
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
            raise self._refuse(f"{self.in_flight} completions are in flight and serve.max_queue is {self.limit}")
        began = self._clock()
        self.in_flight += completions
        try:
            yield
        finally:
            self.in_flight -= completions
            self._seconds.append(self._clock() - began)

    @contextmanager
    def hold_kv(self, size_bytes: int) -> Iterator[None]:
        """Holds a share of the object store for the KV of one request.

        Raises:
            ApiError: 503 with Retry-After, or 400 for more than could ever be held.
        """
        limit = f"serve.kv_mb is {self.kv_limit_bytes >> 20}"
        if size_bytes > self.kv_limit_bytes:
            raise invalid_request(f"The KV of the prompt takes {size_bytes} bytes and {limit}; shorten it.", "messages")
        if self.kv_bytes + size_bytes > self.kv_limit_bytes:
            raise self._refuse(f"{self.kv_bytes} bytes of KV are held and {limit}")
        self.kv_bytes += size_bytes
        try:
            yield
        finally:
            self.kv_bytes -= size_bytes

    def _refuse(self, why: str) -> ApiError:
        self.refused += 1
        return overloaded(why, min(30.0, max(1.0, sum(self._seconds) / len(self._seconds))))
