"""Reads a run's log.jsonl: a step that was redone after a resize counts once, as its last attempt logged it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar


class RunLogError(ValueError):
    """A run log that cannot be read, in a sentence that names the file and the line."""


@dataclass(frozen=True)
class Step:
    """One optimizer step. `seconds` holds the slowest rank's step, data_wait, compute, communication and other."""

    step: int
    time: float  # unix seconds at its end
    attempt: int = 1
    world: int = 1
    loss: float = float("nan")
    loss_by_modality: Mapping[str, float] = field(default_factory=dict)
    lr: float = float("nan")
    grad_norm: float = float("nan")
    target_tokens: int = 0
    tokens: int = 0
    samples: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    per_rank: tuple[Mapping[str, Any], ...] = ()
    balance: Mapping[str, float] = field(default_factory=dict)  # module -> max over mean load of the ranks
    receipt: str = ""
    flops: float = 0.0  # model FLOPs of all ranks; 0 where the log does not tell them
    hardware_flops: float = 0.0  # with what was recomputed
    joules: float = 0.0  # of the nodes or devices that have a counter; 0 where none does


@dataclass(frozen=True)
class Evaluation:
    """The held-out split after `step`, each row once."""

    step: int
    time: float = 0.0
    loss: float = float("nan")
    loss_by_modality: Mapping[str, float] = field(default_factory=dict)
    accuracy: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; `path` is relative to the run folder."""

    step: int
    time: float = 0.0
    path: str = ""
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Resize:
    """A resize contract: who was lost, what was restored, what was done again, and the seconds of each phase."""

    attempt: int
    reason: str = ""
    lost: str = ""
    from_world: int = 0
    to_world: int = 0
    restored_step: int = 0
    steps_redone: int = 0
    measured_from: str = ""  # where the first phase begins: the fault, or the last committed step
    seconds: Mapping[str, float] = field(default_factory=dict)  # detect, replan, start, restore, first_step, total
    plan_before: Mapping[str, Any] = field(default_factory=dict)
    plan_after: Mapping[str, Any] = field(default_factory=dict)
    samples_returned: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class Attempt:
    """A start of the worker group."""

    attempt: int
    time: float = 0.0
    world: int = 0
    start_step: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)  # layout, batch sizes, and what a device is able to do
    started: float = 0.0  # when its processes began, before they imported anything; 0 where the log does not tell

    @property
    def held(self) -> float:
        """Since when its devices were held by it and by no attempt before."""
        return min(self.started, self.time) if self.started and self.attempt == 1 else self.time

    @property
    def staged(self) -> bool:
        """Whether the decoder was cut into pipeline stages."""
        return int(self.plan.get("pp", 1)) > 1


@dataclass(frozen=True)
class Device:
    """What one device of the run can do and costs, as known at its start; None where it is not."""

    name: str = ""
    peak_flops: float | None = None
    peak_source: str = ""
    usd_per_device_hour: float | None = None
    watts_per_device: float | None = None
    energy_source: str = ""


@dataclass(frozen=True)
class Goodput:
    """Where the wall clock went, in seconds: steps kept, steps redone, recovery as the contracts say, and the rest."""

    wall: float = 0.0
    kept: float = 0.0
    redone: float = 0.0
    recovery: float = 0.0
    evaluation: float = 0.0
    checkpoints: float = 0.0

    @property
    def other(self) -> float:
        """The start, and what nothing else accounts for."""
        known = self.kept + self.redone + self.recovery + self.evaluation + self.checkpoints
        return max(0.0, self.wall - known)

    @property
    def fraction(self) -> float:
        """Share of the wall clock spent on steps that were kept; 0 for an empty log."""
        return self.kept / self.wall if self.wall else 0.0


@dataclass(frozen=True)
class RunLog:
    """A run's events. Steps, evaluations and checkpoints are in step order, one of each step."""

    steps: tuple[Step, ...] = ()
    redone: tuple[Step, ...] = ()  # step events that a later attempt superseded, in log order
    evaluations: tuple[Evaluation, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    resizes: tuple[Resize, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    device: Device | None = None
    unreadable: tuple[int, ...] = ()  # numbers of the lines that a crash cut short

    @property
    def modalities(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(name for step in self.steps for name in step.loss_by_modality))

    @property
    def goodput(self) -> Goodput:
        """Wall clock from the first attempt, or the first step's start, to the last event with a time."""
        steps = [*self.steps, *self.redone]
        if not steps:
            return Goodput()
        starts = [step.time - step.seconds.get("step", 0.0) for step in steps]
        starts += [attempt.held for attempt in self.attempts if attempt.time > 0]
        ends = [step.time for step in steps]
        ends += [evaluation.time for evaluation in self.evaluations]
        ends += [checkpoint.time for checkpoint in self.checkpoints]
        return Goodput(
            wall=max(ends) - min(starts),
            kept=sum(step.seconds.get("step", 0.0) for step in self.steps),
            redone=sum(step.seconds.get("step", 0.0) for step in self.redone),
            recovery=sum(_recovery_s(resize) for resize in self.resizes),
            evaluation=sum(evaluation.seconds for evaluation in self.evaluations),
            checkpoints=sum(checkpoint.seconds for checkpoint in self.checkpoints),
        )


def read(path: Path) -> RunLog:
    """The events of a log.jsonl.

    Raises:
        RunLogError: no such file, or a line of a known event that lacks a key or has a value of the wrong type.
    """
    if not path.is_file():
        raise RunLogError(f"Run log {path} does not exist; a run that has taken a step has one.")
    with path.open(encoding="utf-8", errors="replace") as lines:
        return parse(lines, name=str(path))


def parse(lines: Iterable[str], name: str = "log.jsonl") -> RunLog:
    """The events of a log's lines; events of unknown kinds are left out."""
    found: dict[str, list[Any]] = {kind: [] for kind in EVENTS}
    unreadable = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            unreadable.append(number)
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if kind in EVENTS:
            try:
                found[kind].append(_typed(EVENTS[kind], event))
            except (KeyError, TypeError, ValueError) as error:
                raise RunLogError(f"{name} line {number}: the {kind} event is not usable: {error}.") from None
    steps = _last_of_each_step(found["step"])
    kept = {id(step) for step in steps}
    return RunLog(
        steps=steps,
        redone=tuple(step for step in found["step"] if id(step) not in kept),
        evaluations=_last_of_each_step(found["eval"]),
        checkpoints=_last_of_each_step(found["checkpoint"]),
        resizes=tuple(found["resize"]),
        attempts=tuple(found["attempt"]),
        device=found["device"][-1] if found["device"] else None,
        unreadable=tuple(unreadable),
    )


EVENTS: dict[str, type] = {
    "step": Step,
    "eval": Evaluation,
    "checkpoint": Checkpoint,
    "resize": Resize,
    "attempt": Attempt,
    "device": Device,
}
REQUIRED = {
    "step": ("step", "time"),
    "eval": ("step",),
    "checkpoint": ("step",),
    "resize": ("attempt",),
    "attempt": ("attempt",),
    "device": (),
}
T = TypeVar("T", Step, Evaluation, Checkpoint)


def _typed(kind: type, event: Mapping[str, Any]) -> Any:
    """An event as its dataclass; a null is left out, numbers are cast to the field's type."""
    missing = [key for key in REQUIRED[event["event"]] if event.get(key) is None]
    if missing:
        raise ValueError(f"it lacks {missing[0]!r}")
    values: dict[str, Any] = {}
    for item in fields(kind):
        value = event.get(item.name)
        if value is None:
            continue
        if str(item.type) in {"int", "float", "float | None"}:
            if not isinstance(value, int | float):
                raise ValueError(f"{item.name} is {value!r}, not a number")
            value = int(value) if str(item.type) == "int" else float(value)
        elif str(item.type) == "str":
            value = str(value)
        elif str(item.type).startswith("Mapping"):
            if not isinstance(value, dict):
                raise ValueError(f"{item.name} is {value!r}, not an object")
            value = {key: entry for key, entry in value.items() if entry is not None}
        elif str(item.type).startswith("tuple"):
            value = tuple(value)
        values[item.name] = value
    return kind(**values)


def _last_of_each_step(events: Iterable[T]) -> tuple[T, ...]:
    last = {event.step: event for event in events}
    return tuple(last[step] for step in sorted(last))


def _recovery_s(resize: Resize) -> float:
    """Seconds without a step: the phases but the first step, which the step events count."""
    total = resize.seconds.get("total", sum(value for name, value in resize.seconds.items() if name != "total"))
    return max(0.0, total - resize.seconds.get("first_step", 0.0))
