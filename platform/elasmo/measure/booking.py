"""Books every second of every rank of a run: useful, or lost to what.

The run's time is walked once, attempt by attempt. Within an attempt its steps and evaluations take their seconds where
they ended. What lies between is start-up before the first step of a run, recovery before that of a later attempt, after
a step the stall of its checkpoint, and idle beyond that. Since every moment is booked once for every rank, the sums
equal the total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasmo.measure.run_log import Attempt, RunLog, Step

KINDS = (
    "useful", "data stall", "imbalance", "bubble", "communication", "other work",
    "evaluation", "checkpoint", "redone", "recovery", "start-up", "idle",
)  # fmt: skip


@dataclass(frozen=True)
class Booking:
    """Rank-seconds by kind. `useful` is forward, backward and optimizer of steps that counted.

    Attributes:
        seconds: of each of `KINDS`.
        wall_s: from the first worker group's processes to the last event.
    """

    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    wall_s: float = 0.0

    @property
    def total(self) -> float:
        """Rank-seconds of the run."""
        return sum(self.seconds.values())

    @property
    def ranks(self) -> float:
        """Mean number of ranks over the run."""
        return self.total / self.wall_s if self.wall_s else 0.0

    def share(self, kind: str) -> float:
        return self.seconds[kind] / self.total if self.total else 0.0


def book(log: RunLog) -> Booking:
    """Where the rank-seconds of a run went, from its log."""
    seconds = dict.fromkeys(KINDS, 0.0)
    spans = _spans(log)
    for span in spans:
        _walk(log, span, seconds)
    return Booking(seconds, sum(span.end - span.begin for span in spans))


@dataclass(frozen=True)
class _Span:
    """The life of a worker group, until the next one has begun or the driver that held it ended."""

    attempt: Attempt
    begin: float
    end: float
    world: int
    followed: bool = False


def _spans(log: RunLog) -> list[_Span]:
    steps = [*log.steps, *log.redone]
    if not steps:
        return []
    times = [*(step.time for step in steps), *(item.time for item in log.evaluations)]
    times += [item.time for item in log.checkpoints]
    first = min(step.time - step.seconds.get("step", 0.0) for step in steps)
    known = sorted((item for item in log.attempts if item.time > 0), key=lambda item: item.time)
    attempts = known or [Attempt(1, first, max(step.world for step in steps))]
    spans = []
    for number, attempt in enumerate(attempts):
        begin = min(attempt.held, first) if number == 0 else attempt.held
        following = attempts[number + 1] if number + 1 < len(attempts) else None
        # A driver that takes a run up again numbers its attempts anew; nobody held devices between the two.
        followed = following is not None and following.attempt > attempt.attempt
        within = [time for time in times if time >= begin and (following is None or time < following.time)]
        end = following.time if following is not None and followed else max(within, default=begin)
        spans.append(_Span(attempt, begin, end, attempt.world or 1, followed))
    return spans


def _walk(log: RunLog, span: _Span, seconds: dict[str, float]) -> None:
    """Adds the rank-seconds of one worker group."""
    kept = {id(step) for step in log.steps}
    work: list[tuple[float, float, Step | None]] = [
        (step.time, step.seconds.get("step", 0.0), step) for step in (*log.steps, *log.redone)
    ]
    work += [(item.time, item.seconds, None) for item in log.evaluations]
    work = [item for item in work if span.begin <= item[0] <= span.end]
    stalls = {item.step: item.seconds for item in log.checkpoints if span.begin <= item.time <= span.end}
    at, waiting = span.begin, "start-up" if span.attempt.attempt == 1 else "recovery"
    stall, saved = 0.0, False
    for time, took, step in sorted(work, key=lambda item: item[0]):
        stop = max(time, at)
        start = min(max(stop - took, at), stop)
        stood = min(stall, start - at)
        seconds["checkpoint"] += stood * span.world
        seconds[waiting] += (start - at - stood) * span.world
        saved = step.step in stalls if step is not None else saved
        stall = stalls.get(step.step, 0.0) if step is not None else stall - stood
        if step is None:
            seconds["evaluation"] += (stop - start) * span.world
        elif id(step) not in kept:
            seconds["redone"] += (stop - start) * span.world
        else:
            for kind, part in split(step, stop - start, span.world, span.attempt.staged).items():
                seconds[kind] += part
        waiting = "idle" if step is not None else waiting
        at = stop
    # What follows the last step of a group that another one took over from was lost to the fault; at the end of a run
    # the ranks wait until the checkpoint of their last step is written.
    rest = "recovery" if span.followed else "checkpoint" if saved else waiting
    seconds[rest] += (span.end - at) * span.world


def split(step: Step, wall_s: float, world: int, staged: bool = False) -> dict[str, float]:
    """Rank-seconds of a step by kind; they sum up to `wall_s` times `world`.

    A rank that waits in a collective for one that computes longer loses that time to imbalance, or with pipeline stages
    to their bubble, which the same clock cannot tell from it.
    """
    ranks: Sequence[Mapping[str, Any]] = step.per_rank or (dict(step.seconds),)
    waits_for = "bubble" if staged else "imbalance"
    found: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    slowest = max((float(rank.get("compute", 0.0)) for rank in ranks), default=0.0)
    for rank in ranks:
        compute, communication = float(rank.get("compute", 0.0)), float(rank.get("communication", 0.0))
        waited = min(communication, max(0.0, slowest - compute))
        parts = {
            "useful": compute,
            "data stall": float(rank.get("data_wait", 0.0)),
            waits_for: waited,
            "communication": communication - waited,
            "other work": float(rank.get("other", 0.0)),
        }
        known = sum(parts.values())
        share = world / len(ranks)
        if known <= 0:
            found["other work"] += wall_s * share
            continue
        # A rank that is done before the slowest one waits for it; clocks that disagree are scaled to the wall.
        parts[waits_for] += max(0.0, wall_s - known)
        scale = wall_s / sum(parts.values())
        for kind, value in parts.items():
            found[kind] += value * scale * share
    return found
