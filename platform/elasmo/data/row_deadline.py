"""How long reading one row may take, wherever it waits: a mount that has gone away, a file that never ends."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class RowDeadline(Exception):
    """The row took too long."""


@contextlib.contextmanager
def row_deadline(seconds: float) -> Iterator[None]:
    """Raises RowDeadline in the block once it has taken `seconds`.

    A signal interrupts Python code and system calls that wait, which is what reading does; a decoder that is stuck in C
    code is found when the dataset is ingested, where media are decoded in a process that can be killed. Signals reach
    the main thread alone, in which Ray runs tasks: in another thread there is no deadline.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise RowDeadline(f"reading it took more than {seconds:g} s (data.row_timeout_s)")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
