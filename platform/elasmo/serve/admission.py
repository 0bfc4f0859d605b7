"""Admission: how many completions, and how many bytes of the object store, an ingress keeps in flight.

A request has a place from its arrival to its end, and is refused at once where there is none. Before anything of it
runs it also needs its turn: room on the pools, and room in the object store for all the KV it may ever own. It waits
for that in a queue that is fair to API keys, and can leave at any time. What was admitted never waits for room again,
so nothing deadlocks, and what was not admitted is told so, so nothing is dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from elasmo.serve.callers import Caller
from elasmo.serve.deadline import Deadline, DeadlineExceeded
from elasmo.serve.fair_queue import Waiting, gives_way, next_in_line
from elasmo.serve.openai_errors import ApiError, invalid_request, overloaded, rate_limited

_FREED_S = 1.0
"""How long bytes count after their last reference is gone: the object store frees them about half a second late."""


class Place:
    """What one request has: made by `Admission.enter`, given back by `Admission.leave`."""

    def __init__(self, caller: Caller, completions: int, began: float) -> None:
        self.caller = caller
        self.completions = completions
        self.began = began
        self.store_bytes = 0
        self.counted = True
        self.running = False
        self.turn: asyncio.Future[None] | None = None

    def waiting(self) -> Waiting:
        """As the queue sees it."""
        return Waiting(self.caller.name, self.caller.weight, self.completions)


class Admission:
    """Counts what the requests of one ingress replica hold. Used on one event loop.

    Args:
        limit: most completions in flight, those that wait included; a request with `n` choices counts n times.
        running_limit: most completions on the pools; one request with more than that runs alone.
        store_limit_bytes: most bytes owned in the object store, so that a request waits before the store spills.
        clock: seconds, monotonic.
        freed_s: how long bytes count after they were given back.
    """

    def __init__(
        self,
        limit: int,
        running_limit: int,
        store_limit_bytes: int,
        clock: Callable[[], float] = monotonic,
        freed_s: float = _FREED_S,
    ) -> None:
        self.limit = limit
        self.running_limit = running_limit
        self.store_limit_bytes = store_limit_bytes
        self.in_flight = 0
        self.running = 0
        self.refused = 0
        self._store_bytes = 0
        self._clock = clock
        self._freed_s = freed_s
        self._freed: deque[tuple[float, int]] = deque()  # when bytes stop to count, oldest first
        self._waiting: list[Place] = []
        self._running_of: dict[str, int] = {}
        self._seconds: deque[float] = deque([1.0], maxlen=32)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    @property
    def store_bytes(self) -> int:
        """Bytes of the object store that count now: of running requests, and of those that ended just before."""
        self._forget_freed()
        return self._store_bytes

    def check(self, caller: Caller) -> None:
        """Refuses as `enter` would, before the body of a request is read, and takes nothing."""
        if self.in_flight + 1 > self.limit and gives_way(self._queue(), Waiting(caller.name, caller.weight, 1)) is None:
            raise self._full()

    def enter(self, caller: Caller, completions: int) -> Place:
        """A place for each completion, from now until `leave`.

        Raises:
            ApiError: 429 for a key's own limit and 503 for the server's, with Retry-After: the mean duration of the
                latest requests, 1 to 30 s. 400 for more than could ever be admitted.
        """
        own = self.limit if caller.max_in_flight is None else min(self.limit, caller.max_in_flight)
        if completions > own:
            name = "serve.max_queue" if own == self.limit else f"serve.keys.{caller.name}.max_in_flight"
            raise invalid_request(f"n is {completions}; this server runs at most {name}={own}.", "n")
        if caller.in_flight + completions > own and own < self.limit:
            self.refused += 1
            why = f"{caller.in_flight} completions of the key {caller.name!r} are in flight and it may have {own}"
            raise rate_limited(why, self._retry_s())
        stay = list(self._waiting)
        in_flight = self.in_flight
        while in_flight + completions > self.limit:
            at = gives_way([place.waiting() for place in stay], Waiting(caller.name, caller.weight, completions))
            if at is None:
                raise self._full()
            in_flight -= stay.pop(at).completions
        for place in self._waiting:
            if place not in stay:
                self._push_out(place)
        self._waiting = stay
        place = Place(caller, completions, self._clock())
        self.in_flight += completions
        caller.in_flight += completions
        return place

    async def turn(self, place: Place, store_bytes: int, deadline: Deadline) -> None:
        """Returns when the request may start.

        Args:
            store_bytes: all that it may own in the object store at a time.

        Raises:
            ApiError: 503 with Retry-After where its turn did not come in time, or its place went to another key;
                400 for more bytes than there could ever be room for.
        """
        if store_bytes > self.store_limit_bytes:
            raise invalid_request(
                f"The KV and media of the request take {store_bytes} bytes and serve.kv_mb is "
                f"{self.store_limit_bytes >> 20}; shorten it or ask for fewer choices.",
                "messages",
            )
        place.store_bytes = store_bytes
        place.turn = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._grant()
        try:
            await deadline.within(place.turn, "its turn")
        except DeadlineExceeded:
            raise self._refuse(
                f"The request waited {deadline.timeout_s:g} s for its turn behind {self.running} completions"
            ) from None

    def leave(self, place: Place) -> None:
        """Gives back all that a request has, whatever it was doing. May be called twice."""
        self._uncount(place)
        if place in self._waiting:
            self._waiting.remove(place)
        if place.running:
            place.running = False
            self.running -= place.completions
            left = self._running_of[place.caller.name] - place.completions
            self._running_of[place.caller.name] = left
            if not left:
                del self._running_of[place.caller.name]
            self._freed.append((self._clock() + self._freed_s, place.store_bytes))
            self._seconds.append(self._clock() - place.began)
        self._grant()

    def _grant(self) -> None:
        """Starts whose turn it is while there is room. Nobody overtakes a request for which there is none yet."""
        self._forget_freed()
        while (at := next_in_line(self._queue(), self._running_of)) is not None:
            place = self._waiting[at]
            if self.running and self.running + place.completions > self.running_limit:
                return
            if self._store_bytes + place.store_bytes > self.store_limit_bytes:
                self._grant_later()
                return
            del self._waiting[at]
            assert place.turn is not None
            if place.turn.done():  # its client left; `leave` is on its way
                continue
            place.running = True
            self.running += place.completions
            self._running_of[place.caller.name] = self._running_of.get(place.caller.name, 0) + place.completions
            self._store_bytes += place.store_bytes
            place.turn.set_result(None)

    def _grant_later(self) -> None:
        """Looks again when bytes that were given back stop to count; those of running requests come through `leave`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._freed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._freed[0][0] - self._clock()) + 0.001, self._grant)

    def _forget_freed(self) -> None:
        now = self._clock()
        while self._freed and self._freed[0][0] <= now:
            self._store_bytes -= self._freed.popleft()[1]

    def _push_out(self, place: Place) -> None:
        self._uncount(place)
        if place.turn is not None and not place.turn.done():
            place.turn.set_exception(
                self._refuse(f"The queue is full and the key {place.caller.name!r} has the most requests in it")
            )

    def _uncount(self, place: Place) -> None:
        if place.counted:
            place.counted = False
            self.in_flight -= place.completions
            place.caller.in_flight -= place.completions

    def _queue(self) -> list[Waiting]:
        return [place.waiting() for place in self._waiting]

    def _full(self) -> ApiError:
        return self._refuse(f"{self.in_flight} completions are in flight and serve.max_queue is {self.limit}")

    def _refuse(self, why: str) -> ApiError:
        self.refused += 1
        return overloaded(why, self._retry_s())

    def _retry_s(self) -> float:
        return min(30.0, max(1.0, sum(self._seconds) / len(self._seconds)))
