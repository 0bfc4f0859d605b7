"""The ledger of a run: which steps are committed, with which rows, what each resize cost. Pure: clocks are passed in.

A step is committed when every rank of the current attempt has reported it. Reports of an older attempt, from ranks that
were slow to die, are ignored. Steps that a resize makes the run redo appear again with the newer attempt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasmo.data.plan import step_receipt

Event = dict[str, Any]
PHASES = ("detect", "replan", "start", "restore", "first_step")


@dataclass(frozen=True)
class RankStep:
    """What one rank did in one step.

    Attributes:
        step: completed steps including this one; plan step `step - 1`.
        digests: slot number to digest of the rows that arrived.
        loss_sum, target_tokens: by modality, over this rank's slots.
        seconds: `step`, `data_wait`, `compute`, `communication`, `other`.
        tokens: by module.
        substituted: rows of this rank's slots that did not decode: planned and read row id, and the reason.
        leads: whether the rank speaks for its slots; ranks that share them report no loss and no tokens.
        skipped: why no rank's optimizer moved, and the slots and rows at fault; None if the step was taken.
        flops: model FLOPs of this rank's slots, and with what was recomputed; of ranks that lead alone.
        joules: that its counter counted, of ranks that have one.
    """

    step: int
    digests: Mapping[int, str]
    loss_sum: Mapping[str, float]
    target_tokens: Mapping[str, int]
    seconds: Mapping[str, float]
    tokens: Mapping[str, int]
    lr: float
    grad_norm: float | None
    leads: bool = True
    substituted: tuple[Mapping[str, Any], ...] = ()
    skipped: Mapping[str, Any] | None = None
    flops: tuple[float, float] = (0.0, 0.0)
    joules: float = 0.0


@dataclass(frozen=True)
class Restored:
    """What an attempt read before its first step: bytes of all ranks, from memory or storage, the slowest's seconds."""

    bytes: int = 0
    tier: str | None = None
    seconds: float = 0.0

    @property
    def gb_s(self) -> float | None:
        return self.bytes / 1e9 / self.seconds if self.seconds else None


@dataclass
class Attempt:
    """One life of the worker group, from its start to its end or a resize."""

    number: int
    world: int
    start_step: int
    plan: Mapping[str, Any]
    nodes: tuple[str, ...]
    read: Restored = Restored()
    times: dict[str, float] = field(default_factory=dict)
    refused: list[Event] = field(default_factory=list)


class Ledger:
    """Turns what ranks and the controller report into the events of the run log."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.committed = 0
        self.receipts: dict[int, str] = {}
        self.resizes: list[Event] = []
        self._pending: dict[int, dict[int, RankStep]] = {}
        self._last_commit_time: float | None = None
        self._failure: dict[str, Any] = {}

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def failed(self, now: float, reason: str, lost: tuple[str, ...] = ()) -> None:
        """The controller saw the worker group fail; the first sight of a failure counts."""
        self._failure.setdefault("time", now)
        self._failure.setdefault("reason", reason)
        self._failure.setdefault("lost", []).extend(name for name in lost if name not in self._failure.get("lost", []))

    def fault_injected(self, now: float, what: str) -> None:
        """Someone who knows says when the fault happened, so that detection is measured from there."""
        self._failure["fault_time"] = now
        self._failure.setdefault("lost", []).append(what)

    def group_started(self, now: float) -> None:
        """The controller has placed a new worker group and its processes run."""
        self._failure["started_time"] = now

    def begin(self, now: float, world: int, start_step: int, plan: Mapping[str, Any], nodes: tuple[str, ...]) -> Event:
        """A worker group has agreed on the step to start from; returns the event to log."""
        number = len(self.attempts) + 1
        self.attempts.append(Attempt(number, world, start_step, plan, nodes, times={"entered": now}))
        self._pending.clear()
        started = self._failure.get("started_time")
        return {
            "event": "attempt",
            "attempt": number,
            "world": world,
            "start_step": start_step,
            "plan": dict(plan),
            **({"started": started} if started is not None else {}),
        }

    def fell_back(self, number: int, refused_step: int, reason: str, to_step: int | None) -> Event:
        """The checkpoint to start from was refused; None where no older one is left, and the run ends."""
        attempt = self.attempts[-1]
        attempt.refused.append({"step": refused_step, "reason": reason})
        if to_step is not None:
            attempt.start_step = to_step
        return {
            "event": "fallback",
            "attempt": number,
            "refused_step": refused_step,
            "reason": reason,
            "to_step": to_step,
            "steps_to_redo": None if to_step is None else max(refused_step, self.committed) - to_step,
        }

    def restored(self, now: float, number: int, read: Restored) -> None:
        """Rank 0 holds its weights and can read data."""
        attempt = self.attempt
        if attempt is not None and attempt.number == number:
            attempt.times["restored"] = now
            attempt.read = read

    def rank_step(self, now: float, number: int, rank: int, report: RankStep) -> list[Event]:
        """A rank finished a step; returns what is to be logged once the last rank has."""
        attempt = self.attempt
        if attempt is None or attempt.number != number:
            return []
        ranks = self._pending.setdefault(report.step, {})
        ranks[rank] = report
        if len(ranks) < attempt.world:
            return []
        del self._pending[report.step]
        events = []
        if report.step == attempt.start_step + 1:
            attempt.times["first_step"] = now
            if number > 1:
                events.append(self._resize(attempt))
            self._failure = {}
        self.committed = report.step
        self._last_commit_time = now
        events.append(_step_event(attempt, report.step, [ranks[r] for r in sorted(ranks)]))
        self.receipts[report.step] = events[-1]["receipt"]
        return events

    def _resize(self, attempt: Attempt) -> Event:
        before = self.attempts[-2]
        times, failure = attempt.times, self._failure
        origin = failure.get("fault_time", self._last_commit_time)
        marks = {
            "detect": failure.get("time"),
            "replan": failure.get("started_time"),
            "start": times.get("entered"),
            "restore": times.get("restored"),
            "first_step": times.get("first_step"),
        }
        seconds: dict[str, float | None] = {}
        previous = origin
        for phase in PHASES:
            mark = marks[phase]
            known = mark is not None and previous is not None
            seconds[phase] = round(max(0.0, mark - previous), 3) if known else None  # type: ignore[operator]
            previous = mark if mark is not None else previous
        last = times["first_step"]
        seconds["total"] = round(last - origin, 3) if origin is not None else None
        event: Event = {
            "event": "resize",
            "attempt": attempt.number,
            "reason": failure.get("reason", "worker group restarted"),
            "lost": ", ".join(failure.get("lost", ())) or "unknown",
            "measured_from": "fault" if "fault_time" in failure else "last committed step",
            "from_world": before.world,
            "to_world": attempt.world,
            "committed_step": self.committed,
            "restored_step": attempt.start_step,
            "steps_redone": self.committed - attempt.start_step,
            "seconds": seconds,
            "plan_before": dict(before.plan),
            "plan_after": dict(attempt.plan),
            "samples_returned": (self.committed - attempt.start_step) * int(attempt.plan["global_batch"]),
            "bytes_read": attempt.read.bytes,
            "restored_from": attempt.read.tier,
            "read_gb_s": attempt.read.gb_s,
            **({"refused_checkpoints": attempt.refused} if attempt.refused else {}),
        }
        self.resizes.append(event)
        return event


def _step_event(attempt: Attempt, step: int, ranks: list[RankStep]) -> Event:
    digests: dict[int, str] = {}
    for report in ranks:
        digests.update(report.digests)
    modalities = sorted({name for report in ranks for name in report.target_tokens})
    losses = {name: sum(report.loss_sum.get(name, 0.0) for report in ranks) for name in modalities}
    targets = {name: sum(report.target_tokens.get(name, 0) for report in ranks) for name in modalities}
    leaders = [report for report in ranks if report.leads]
    tokens = {name: [report.tokens.get(name, 0) for report in leaders] for name in leaders[0].tokens}
    substituted = [dict(row) for report in leaders for row in report.substituted]
    return {
        "event": "step",
        "attempt": attempt.number,
        "step": step,
        "world": attempt.world,
        "loss": _finite(sum(losses.values()) / max(1, sum(targets.values()))),
        "loss_by_modality": {name: _finite(losses[name] / targets[name]) for name in modalities if targets[name]},
        "lr": ranks[0].lr,
        "grad_norm": ranks[0].grad_norm,
        "target_tokens": sum(targets.values()),
        "tokens": sum(tokens.get("decoder", [])),
        "samples": int(attempt.plan["global_batch"]),
        "seconds": {name: max(report.seconds[name] for report in ranks) for name in ranks[0].seconds},
        "per_rank": [
            {"rank": rank, **report.seconds, **{f"{name}_tokens": count for name, count in report.tokens.items()}}
            for rank, report in enumerate(ranks)
        ],
        "balance": {name: max(loads) * len(loads) / sum(loads) for name, loads in tokens.items() if sum(loads)},
        "flops": sum(report.flops[0] for report in ranks),
        "hardware_flops": sum(report.flops[1] for report in ranks),
        "joules": sum(report.joules for report in ranks),
        "receipt": step_receipt([digests[slot] for slot in sorted(digests)]),
        **({"substituted": substituted} if substituted else {}),
        **({"skipped": dict(ranks[0].skipped)} if ranks[0].skipped is not None else {}),
    }


def skipped_steps(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Steps that a run's events say were skipped, or are to be when they come again after a rollback, and why."""
    found = {}
    for event in events:
        if event["event"] == "step" and "skipped" in event:
            found[int(event["step"])] = str(event["skipped"]["reason"])
        elif event["event"] == "fault" and event["kind"] == "rollback":
            found[int(event["step"])] = str(event["reason"])
    return found


def _finite(value: float) -> float | None:
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else None
