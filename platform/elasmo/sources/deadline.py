"""An iterator that is given up when it gives nothing for too long.

It runs in a thread, since what blocks may be anybody's code: a socket, a lock, a mount that has gone away. A thread
cannot be ended from outside; this one is left behind, closes its iterator if it ever comes back, and does not hold up
the end of the process. Code that keeps Python's lock while it blocks stops the clock, too.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

AHEAD = 64
"""Items that are read ahead of the caller."""
_TAKEN_AT, _LOOK_S = AHEAD // 2, 0.25
"""Items from which the caller is woken, and how often it looks for fewer: waking it for each would slow both down."""
_PARTING_S = 1.0
"""How long an iterator that is no longer wanted may take to close, before it is left to itself."""


def within_deadline(
    items: Iterator[Item], seconds: float | None, late: Callable[[Item | None, int], Exception]
) -> Iterator[Item]:
    """The items as they come.

    Args:
        seconds: most between two items, None for no limit; time in which the caller is busy does not count.
        late: makes the error of (last item, number of items) when that is over.
    """
    return items if seconds is None else _Reader(items, seconds, late).read()


class _Reader(Generic[Item]):
    def __init__(self, items: Iterator[Item], seconds: float, late: Callable[[Item | None, int], Exception]) -> None:
        self.items = items
        self.seconds = seconds
        self.late = late
        self._changed = threading.Condition()
        self._ready: deque[Item] = deque()
        self._ended = self._left = False
        self._error: BaseException | None = None
        self._since = time.monotonic()

    def read(self) -> Iterator[Item]:
        context = contextvars.copy_context()  # the stage at work, which its ledger is told of
        thread = threading.Thread(target=context.run, args=(self._run,), name="elasmo source", daemon=True)
        late = False
        thread.start()
        last: Item | None = None
        count = 0
        try:
            while True:
                for item in self._take():
                    last, count = item, count + 1
                    yield item
                with self._changed:
                    if self._ready:
                        continue
                    if self._ended:
                        break
                    late = time.monotonic() - self._since > self.seconds
                if late:
                    raise self.late(last, count)
            thread.join()
            if self._error is not None:
                raise self._error
        finally:
            with self._changed:
                self._left = True
                self._changed.notify_all()
            if not late:
                thread.join(timeout=_PARTING_S)

    def _take(self) -> list[Item]:
        """What is there, after waiting for something to be there until the deadline."""
        with self._changed:
            while not self._ready and not self._ended:
                left = self._since + self.seconds - time.monotonic()
                if left < 0:
                    break
                self._changed.wait_for(self._worth_taking, min(left + 0.001, _LOOK_S))
            taken = list(self._ready)
            self._ready.clear()
            if len(taken) >= AHEAD:  # the thread was waiting for room, not for its source
                self._since = time.monotonic()
            self._changed.notify_all()
            return taken

    def _worth_taking(self) -> bool:
        return self._ended or len(self._ready) >= _TAKEN_AT

    def _run(self) -> None:
        try:
            for item in self.items:
                with self._changed:
                    self._ready.append(item)
                    if len(self._ready) == _TAKEN_AT:
                        self._changed.notify_all()
                    while len(self._ready) >= AHEAD and not self._left:
                        self._changed.wait()
                    self._since = time.monotonic()
                    if self._left:
                        break
        except BaseException as error:
            self._error = error
        finally:
            close: Any = getattr(self.items, "close", None)
            if close is not None and self._left:
                close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()
