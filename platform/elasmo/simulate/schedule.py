"""Pipeline schedules, event by event: when each rank runs which pass of which micro-batch, and where it waits.

GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019), interleaved 1F1B (Narayanan et al. 2021) and zero-bubble ZB-H1
(Qi et al. 2024), whose backward passes are split into the gradient of the input and that of the weights. Times may
differ by stage and by micro-batch, so imbalance shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from elasmo.simulate.plan import PlanError, Schedule

Kind = Literal["F", "B", "W"]
Times = Callable[[int, int], float]
"""Seconds of a pass of (virtual stage, micro-batch)."""


@dataclass(frozen=True)
class Event:
    """A pass on a rank."""

    rank: int
    kind: Kind
    stage: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Every pass of a step.

    Attributes:
        bubble_s: of each rank, seconds without work between the step's start and end.
    """

    events: tuple[Event, ...]
    end_s: float
    bubble_s: tuple[float, ...]


def order(schedule: Schedule, ranks: int, chunks: int, micro_batches: int, rank: int) -> list[tuple[Kind, int, int]]:
    """The passes of a rank in order, as (kind, virtual stage, micro-batch); virtual stage `chunk * ranks + rank`."""
    m = micro_batches
    if schedule == "gpipe":
        return [("F", rank, i) for i in range(m)] + [("B", rank, i) for i in reversed(range(m))]
    if schedule == "zero-bubble":
        return _zero_bubble(ranks, m, rank)
    if schedule == "1f1b" or chunks == 1:
        warm = min(ranks - rank - 1, m)
        passes: list[tuple[Kind, int, int]] = [("F", rank, i) for i in range(warm)]
        for i in range(m - warm):
            passes += [("F", rank, warm + i), ("B", rank, i)]
        return passes + [("B", rank, i) for i in range(m - warm, m)]
    forward = _interleaved(ranks, chunks, m)
    warm = min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, m * chunks)
    backward = [(chunks - 1 - chunk, i) for chunk, i in forward]
    passes = [("F", chunk * ranks + rank, i) for chunk, i in forward[:warm]]
    for step, (chunk, i) in enumerate(forward[warm:]):
        passes.append(("F", chunk * ranks + rank, i))
        back, j = backward[step]
        passes.append(("B", back * ranks + rank, j))
    return passes + [("B", back * ranks + rank, j) for back, j in backward[len(forward) - warm :]]


def _interleaved(ranks: int, chunks: int, micro_batches: int) -> list[tuple[int, int]]:
    """Chunk and micro-batch of each forward pass: rounds of `ranks` micro-batches through every chunk."""
    found = []
    for first in range(0, micro_batches, ranks):
        group = range(first, min(first + ranks, micro_batches))
        found += [(chunk, i) for chunk in range(chunks) for i in group]
    return found


def _zero_bubble(ranks: int, m: int, rank: int) -> list[tuple[Kind, int, int]]:
    """ZB-H1: 1F1B's warm-up, then weight gradients fill what would be waiting."""
    warm = min(ranks - rank - 1, m)
    passes: list[tuple[Kind, int, int]] = [("F", rank, i) for i in range(warm)]
    done = 0
    for i in range(m - warm):
        passes += [("F", rank, warm + i), ("B", rank, i)]
        if i >= rank:
            passes.append(("W", rank, done))
            done += 1
    for i in range(m - warm, m):
        passes.append(("B", rank, i))
        if done <= i - rank:
            passes.append(("W", rank, done))
            done += 1
    return passes + [("W", rank, i) for i in range(done, m)]


def run(
    schedule: Schedule,
    ranks: int,
    chunks: int,
    micro_batches: int,
    forward: Times,
    backward: Times,
    send_s: float = 0.0,
    weight: Times | None = None,
) -> Timeline:
    """Plays a schedule: a pass starts when its rank is free and its input has arrived.

    Args:
        forward, backward: seconds of a pass; with `weight` the backward pass is of the input's gradient alone.
        send_s: seconds that activations and their gradients take between ranks.

    Raises:
        PlanError: an interleaved schedule whose micro-batches do not fill its rounds.
    """
    if schedule == "interleaved" and chunks > 1 and micro_batches % ranks:
        raise PlanError(
            f"schedule=interleaved needs micro-batches that pp={ranks} divides, not {micro_batches}; "
            "change the global batch or use 1f1b."
        )
    last = ranks * chunks - 1
    queues = [order(schedule, ranks, chunks, micro_batches, rank) for rank in range(ranks)]
    at, clock = [0] * ranks, [0.0] * ranks
    ready: dict[tuple[Kind, int, int], float] = {}
    events: list[Event] = []
    waiting = list(range(ranks))
    while waiting:
        progress = False
        for rank in list(waiting):
            queue = queues[rank]
            while at[rank] < len(queue):
                kind, stage, i = queue[at[rank]]
                arrival = _arrival(ready, kind, stage, i, last, send_s if ranks > 1 else 0.0)
                if arrival is None:
                    break
                seconds = (forward if kind == "F" else backward if kind == "B" else weight or backward)(stage, i)
                start = max(clock[rank], arrival)
                clock[rank] = start + seconds
                ready[kind, stage, i] = clock[rank]
                events.append(Event(rank, kind, stage, i, start, clock[rank]))
                at[rank] += 1
                progress = True
            if at[rank] == len(queue):
                waiting.remove(rank)
        if not progress and waiting:
            raise PlanError(f"schedule={schedule} with pp={ranks}, chunks={chunks} does not run to its end.")
    end = max(clock)
    busy = [0.0] * ranks
    for event in events:
        busy[event.rank] += event.end_s - event.start_s
    return Timeline(tuple(events), end, tuple(end - spent for spent in busy))


def _arrival(
    ready: dict[tuple[Kind, int, int], float], kind: Kind, stage: int, i: int, last: int, send_s: float
) -> float | None:
    if kind == "F":
        if stage == 0:
            return 0.0
        before = ready.get(("F", stage - 1, i))
    elif kind == "B":
        if stage == last:
            return ready.get(("F", stage, i))
        before = ready.get(("B", stage + 1, i))
    else:
        return ready.get(("B", stage, i))
    return None if before is None else before + send_s


def step_seconds(
    schedule: Schedule, ranks: int, chunks: int, micro_batches: int, forward: Sequence[float],
    backward: Sequence[float], send_s: float,
) -> float:  # fmt: skip
    """The end of a schedule whose micro-batches are alike, in closed form, for a search; stages may differ.

    Every rank works through its own passes; the slowest sets the pace, and the first and last micro-batch pass all.
    """
    v = ranks * chunks
    own = [sum(forward[c * ranks + r] + backward[c * ranks + r] for c in range(chunks)) for r in range(ranks)]
    slowest = max(own)
    whole = sum(forward[:v]) + sum(backward[:v])
    fill = (whole - slowest) / chunks if schedule != "zero-bubble" else (whole - slowest) / 3
    hops = 2 * (ranks - 1) * send_s
    exposed = 2 * send_s * (chunks if chunks > 1 else 0) * micro_batches if ranks > 1 else 0.0
    return micro_batches * slowest + max(0.0, fill) + hops + exposed
