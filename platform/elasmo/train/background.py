"""One job at a time beside the training loop: a checkpoint is written while the next steps run.

At most one job is in flight, so that memory for one snapshot is enough and a slow store slows training down instead of
filling the host. What a job raises reaches the loop at the next job or at the end, never later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Background:
    """Runs jobs on a thread, one after the other. The thread does not keep a process from ending."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> float:
        """Waits for the job before, then starts this one.

        Returns:
            Seconds waited.

        Raises:
            What the job before raised; this one is then not started.
        """
        waited = self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name="elasmo-background", daemon=True)
        self._thread.start()
        return waited

    def wait(self) -> float:
        """Waits until nothing is in flight; returns the seconds, raises what the job raised, once."""
        started = self._clock()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._clock() - started

    @property
    def busy(self) -> bool:
        """Whether a job is in flight."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
