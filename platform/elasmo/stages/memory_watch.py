"""Peak resident memory of this process and its children while something runs.

Two readings, of which the larger counts: a thread adds up the resident sets of the process tree every `EVERY_S`, and
the kernel's high-water mark of this process (VmHWM) is exact where it rose meanwhile, for it never falls. Pages that
processes share count once for each of them. Where there is no /proc the peak is unknown.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

EVERY_S = 0.1
CHILDREN_EVERY = 5
"""Samples between two looks for new children, which cost more than reading a size."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")


class MemoryWatch:
    """A context manager; `peak_bytes` and `method` may be read at any time, and after it."""

    def __init__(self, on_sample: Callable[[int], None] | None = None) -> None:
        """`on_sample` is told the peak so far after each sample, on the watching thread."""
        self._on_sample = on_sample
        self._sampled = 0
        self._mark: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def peak_bytes(self) -> int | None:
        """None where nothing can be read."""
        return max(self._sampled, self._risen() or 0) or None

    @property
    def method(self) -> str:
        """How the peak was found."""
        if self.peak_bytes is None:
            return "unknown: no /proc here"
        exact = self._risen() == self.peak_bytes
        return "VmHWM of the process" if exact else f"RSS of the process tree, sampled every {EVERY_S:g} s"

    def __enter__(self) -> MemoryWatch:
        self._mark = high_water_bytes()
        self._sample(children_of(os.getpid()))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample(children_of(os.getpid()))

    def _watch(self) -> None:
        count, children = 0, list[int]()
        while not self._stop.wait(EVERY_S):
            if count % CHILDREN_EVERY == 0:
                children = children_of(os.getpid())
            count += 1
            self._sample(children)
            if self._on_sample is not None:
                self._on_sample(self.peak_bytes or 0)

    def _sample(self, children: list[int]) -> None:
        self._sampled = max(self._sampled, sum(map(resident_bytes, [os.getpid(), *children])))

    def _risen(self) -> int | None:
        """The high-water mark, if this time raised it."""
        now = high_water_bytes()
        return now if now is not None and self._mark is not None and now > self._mark else None


def resident_bytes(process: int) -> int:
    """Resident set of a process, 0 where it is gone."""
    try:
        return int((PROC / str(process) / "statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def high_water_bytes() -> int | None:
    """The largest resident set that this process ever had."""
    try:
        lines = (PROC / "self" / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def children_of(process: int) -> list[int]:
    """Processes below one, at any depth."""
    found: list[int] = []
    try:
        for task in (PROC / str(process) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except (OSError, ValueError):  # the process, or one of its threads, has just ended
        pass
    return [*found, *(below for child in found for below in children_of(child))]


def machine_bytes() -> int | None:
    """Memory that this process may have: the machine's, or its control group's where that is less."""
    limits: list[int] = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # absent, or `max`
            continue
    with contextlib.suppress(OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES)
    return min(limits, default=None)
