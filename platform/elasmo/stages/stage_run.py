"""Past runs of stages, read from ledgers: what began is put together with how it ended, if it did.

A stage that began and did not end is running where its process lives, and was killed where that is gone. After a
process on another host nobody here can ask; it was killed when the ledger has not heard of it for `SILENT_S`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from elasmo.stages.stage_ledger import FILE, FORMAT, PULSE_S, born

Outcome = Literal["done", "failed", "killed", "running"]
SILENT_S = 10 * PULSE_S
TAIL_BYTES = 8 << 20
"""Of a longer ledger the last so many bytes are read: what counts is what was lately."""


@dataclass(frozen=True)
class PartRun:
    """A part of a stage: a shard, a file, a chunk. `seconds` is None where it did not end."""

    name: str
    outcome: Outcome
    seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class StageRun:
    """One run of a stage.

    Attributes:
        stage: its name.
        dataset: of which dataset.
        began: Unix time.
        outcome: how it ended.
        error: why it did not end well, a sentence.
        seconds: wall time; of one that was killed, the time up to the last sign of it.
        memory_bytes: peak of the process and its children; of one that was killed, the last that was seen.
        memory_method: how that was found.
        rows_in, bytes_in, rows_out, bytes_out: sizes, None where unknown.
        largest_part_bytes: of the parts that it read.
        retries: attempts before it that did not end well.
        quarantined: refused rows by reason.
        verdict: of the gate, for its stage.
        reused: whether its result stood before.
        synthetic: whether faults were injected.
        parts: in the order in which it entered them.
    """

    stage: str
    dataset: str = ""
    began: float = 0.0
    outcome: Outcome = "done"
    error: str | None = None
    seconds: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_method: str | None = None
    rows_in: int | None = None
    bytes_in: int | None = None
    rows_out: int | None = None
    bytes_out: int | None = None
    largest_part_bytes: int | None = None
    retries: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    verdict: str | None = None
    reused: bool = False
    synthetic: bool = False
    parts: tuple[PartRun, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether a person ended it, which says nothing of the stage."""
        return self.outcome == "killed" and self.error == "interrupted by the user"

    @property
    def broke_in(self) -> str | None:
        """The part that a failed or killed run was in."""
        bad = self.outcome in ("failed", "killed") and not self.interrupted
        return next((part.name for part in self.parts if part.outcome != "done"), None) if bad else None


def read_ledger(lake: Path, dataset: str, tail_bytes: int = TAIL_BYTES) -> list[StageRun]:
    """The runs in a dataset's ledger by the time they began; none where there is no ledger. Torn lines are left out."""
    path = lake / dataset / FILE
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - tail_bytes))
            lines = file.read().splitlines()
    except OSError:
        return []
    return runs_of(list(filter(None, map(_parsed, lines))), time.time(), lives)


def datasets_of(lake: Path) -> list[str]:
    """Datasets of a lake that have a ledger."""
    return sorted(path.parent.name for path in lake.glob(f"*/{FILE}"))


def runs_of(
    records: Sequence[Mapping[str, Any]], now: float, alive: Callable[[Mapping[str, Any]], bool | None]
) -> list[StageRun]:
    """Puts lines together.

    Args:
        records: the lines of a ledger in their order.
        now: Unix time.
        alive: whether the process of a `begin` line lives, None where that cannot be known.
    """
    begins = {r["id"]: r for r in records if r.get("event") == "begin" and r.get("format") == FORMAT}
    ends = {r["id"]: r for r in records if r.get("event") == "end" and r["id"] in begins}
    left = {r["id"]: r for r in records if r.get("event") == "part end"}
    parts: dict[str, list[PartRun]] = {name: [] for name in begins}
    seen: dict[str, list[Mapping[str, Any]]] = {name: [] for name in begins}
    for record in records:
        whose = record.get("of", record.get("id"))
        if whose in seen:
            seen[whose].append(record)
        if record.get("event") == "part" and whose in parts:
            end = left.get(record["id"], {})
            outcome = end.get("outcome", "running")
            parts[whose].append(
                PartRun(record["part"], outcome, end.get("seconds"), record.get("rows"), record.get("bytes"))
            )
    found = []
    for name, begin in begins.items():
        run = _ended(begin, ends[name]) if name in ends else _unfinished(begin, seen[name], now, alive(begin))
        given = [replace(p, outcome=run.outcome) if p.outcome == "running" else p for p in parts[name]]
        found.append(replace(run, parts=tuple(given)))
    return sorted(found, key=lambda run: run.began)


def lives(begin: Mapping[str, Any]) -> bool | None:
    """Whether the process that wrote a line lives: a process id alone would be given away again."""
    if begin.get("host") != socket.gethostname():
        return None
    started = born(int(begin["pid"]))
    return started is not None and started == begin.get("born")


def _ended(begin: Mapping[str, Any], end: Mapping[str, Any]) -> StageRun:
    names = StageRun.__dataclass_fields__.keys() - {"parts", "began"}
    known = {name: value for name, value in {**begin, **end}.items() if name in names}
    return StageRun(**known, began=begin["time"])


def _unfinished(
    begin: Mapping[str, Any], seen: Sequence[Mapping[str, Any]], now: float, alive: bool | None
) -> StageRun:
    last = max(record["time"] for record in seen)
    pulses = [record for record in seen if record["event"] == "pulse"]
    running = alive if alive is not None else now - last < SILENT_S
    memory = max((int(pulse["memory_bytes"]) for pulse in pulses), default=None)
    run = _ended(begin, {})
    return replace(
        run,
        outcome="running" if running else "killed",
        error=None if running else "its process was killed",
        seconds=(now if running else last) - run.began,
        memory_bytes=memory,
        memory_method=None if memory is None else "last pulse",
    )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        tree = json.loads(line)
    except ValueError:
        return None
    return tree if isinstance(tree, dict) and "time" in tree and "id" in tree and "event" in tree else None
