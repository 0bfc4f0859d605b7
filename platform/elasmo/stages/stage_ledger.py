"""The stage ledger, `<lake>/<dataset>/ledger.jsonl`: what each stage of each ingestion cost, and how it ended.

A stage writes a line when it begins, one for each part (shard, file, chunk) that it enters and leaves, a pulse now and
then, and a line when it ends. So a stage that was killed is one that begins and does not end, and the part that it was
in is known. A line is one write under a lock, behind a line break wherever the line before it was torn; only begin and
end of a stage wait for the disk. The ledger never ends an ingestion: what cannot be written is logged and left out.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasmo.stages.memory_watch import MemoryWatch

FILE = "ledger.jsonl"
FORMAT = 1
PULSE_S = 30.0
"""A stage writes a pulse when it has written nothing for so long."""
PULSE_GROWTH = 1.25
"""And when its memory has grown by this factor: what a killed stage had reached is then known to within it."""
ERROR_CHARACTERS = 300

_log = logging.getLogger(__name__)
_stage: ContextVar[Stage | None] = ContextVar("stage", default=None)


@dataclass
class Stage:
    """A stage at work; set what is known of it before it ends.

    Attributes:
        rows_in, bytes_in: what it reads; None where unknown.
        rows_out, bytes_out: what it made.
        quarantined: rows it refused, by reason.
        verdict: of the gate.
        reused: whether its result stood before and was only verified.
    """

    ledger: Ledger
    id: str
    rows_in: int | None = None
    bytes_in: int | None = None
    rows_out: int | None = None
    bytes_out: int | None = None
    quarantined: Mapping[str, int] = field(default_factory=dict)
    verdict: str | None = None
    reused: bool = False
    _part: tuple[str, str, float] | None = None
    _largest: int | None = None
    _pulse: tuple[float, int] = (0.0, 0)

    def enter(self, part: str | None, rows: int | None = None, size_bytes: int | None = None) -> None:
        """Leaves the part it was in and enters `part`, None for no part."""
        self.leave("done")
        if part is not None:
            self._part = (secrets.token_hex(4), part, time.perf_counter())
            self._largest = max(self._largest or 0, size_bytes or 0) or None
            head = {"event": "part", "id": self._part[0], "of": self.id, "part": part}
            self.ledger.write({**head, "rows": rows, "bytes": size_bytes})

    def leave(self, outcome: str) -> None:
        """Leaves the part it was in."""
        if self._part is not None:
            name, _, began = self._part
            seconds = round(time.perf_counter() - began, 6)
            self.ledger.write({"event": "part end", "id": name, "seconds": seconds, "outcome": outcome})
            self._part = None

    def pulse(self, seconds: float, memory_bytes: int) -> None:
        """Writes how far it has come, if that is news."""
        at, size = self._pulse
        if seconds - at >= PULSE_S or memory_bytes > size * PULSE_GROWTH:
            self._pulse = seconds, memory_bytes
            told = {"event": "pulse", "id": self.id, "seconds": round(seconds, 3), "memory_bytes": memory_bytes}
            self.ledger.write(told)

    def sizes(self) -> dict[str, Any]:
        """What the line at its end says of it."""
        names = ("rows_in", "bytes_in", "rows_out", "bytes_out", "quarantined", "verdict", "reused")
        return {**{name: getattr(self, name) for name in names}, "largest_part_bytes": self._largest}


class Ledger:
    """Appends to the ledger of a dataset; any number of processes may do so at once."""

    def __init__(
        self, lake: Path, dataset: str, synthetic: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """`synthetic` marks the evidence of an ingestion into which faults are injected."""
        self.path = lake / dataset / FILE
        self.dataset = dataset
        self.synthetic = synthetic
        self.run = secrets.token_hex(4)
        self._clock = clock
        self._silenced = False

    @contextmanager
    def stage(
        self, name: str, rows_in: int | None = None, bytes_in: int | None = None, retries: int = 0
    ) -> Iterator[Stage]:
        """Writes that a stage begins, and at the end of the block what it cost and how it ended.

        Args:
            name: of the stage.
            rows_in: rows that it will read.
            bytes_in: bytes that it will read.
            retries: attempts before this one that did not end well.
        """
        stage = Stage(self, secrets.token_hex(4), rows_in, bytes_in)
        who = {"run": self.run, "host": socket.gethostname(), "pid": os.getpid(), "born": born(os.getpid())}
        what = {"stage": name, "dataset": self.dataset, "rows_in": rows_in, "bytes_in": bytes_in, "retries": retries}
        begin = {"event": "begin", "format": FORMAT, "id": stage.id, **what, "synthetic": self.synthetic, **who}
        self.write(begin, durable=True)
        before, token, began, cpu = _stage.get(), None, time.perf_counter(), cpu_s()
        outcome, error = "done", None
        watch = MemoryWatch(lambda size: stage.pulse(time.perf_counter() - began, size))
        try:
            token = _stage.set(stage)
            with watch:
                yield stage
        except BaseException as raised:
            outcome = "failed" if isinstance(raised, Exception) else "killed"
            error = sentence(raised)
            raise
        finally:
            if token is not None:
                _stage.set(before)
            stage.leave(outcome)
            cost = {"seconds": round(time.perf_counter() - began, 6), "cpu_s": round(cpu_s() - cpu, 6)}
            memory = {"memory_bytes": watch.peak_bytes, "memory_method": watch.method}
            ended = {"event": "end", "id": stage.id, "outcome": outcome, "error": error, **cost, **memory}
            self.write({**ended, **stage.sizes()}, durable=True)

    def write(self, record: Mapping[str, Any], durable: bool = False) -> None:
        """Appends a line; `durable` waits until it is on disk."""
        line = json.dumps({**record, "time": round(self._clock(), 3)}, ensure_ascii=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
                file.write(b"\n" + line if torn else line)
                if durable:
                    os.fsync(file.fileno())
        except OSError as error:
            if not self._silenced:
                _log.warning("%s cannot be written (%s); this ingestion is not recorded in full.", self.path, error)
            self._silenced = True


def at_part(name: str | None, rows: int | None = None, size_bytes: int | None = None) -> None:
    """Tells the stage that is at work which part it has come to, None for none; does nothing outside of a stage."""
    stage = _stage.get()
    if stage is not None:
        stage.enter(name, rows, size_bytes)


def sentence(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by the user"
    text = " ".join(str(error).split()) or type(error).__name__
    named = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return named if len(named) <= ERROR_CHARACTERS else named[: ERROR_CHARACTERS - 1] + "…"


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def born(process: int) -> int | None:
    """When a process began, in the kernel's ticks: a number of its own together with the process id."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
