"""What held a run up most, in words, with the change to make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from elasmo.measure.booking import Booking
from elasmo.measure.run_log import RunLog

WORTH_SAYING = 0.05
"""Share of the rank-seconds below which a loss is left alone."""
SLOW, FEWEST_STEPS = 1.3, 10
"""A rank is slow that computes this many times the median of the ranks, over at least so many steps."""
ADVICE = {
    "data stall": "data-bound: ranks waited for rows; raise data.decode_workers (now {decode_workers}), or "
    "data.lookahead_mb",
    "imbalance": "imbalance: ranks waited for the one with most to compute; lower train.micro_batch, so that there are "
    "more slots to deal out, or set train.slot_tokens",
    "bubble": "pipeline-bound: stages waited for each other; raise train.global_batch or lower train.micro_batch for "
    "more micro-batches a step, or set train.layout.schedule to interleaved or zero-bubble",
    "communication": "communication-bound: raise train.micro_batch or train.global_batch, or lower train.layout.tp or "
    "train.layout.sp",
    "redone": "steps were done again: lower train.checkpoint_every (now {checkpoint_every}), or set train.memory.every",
    "recovery": "recovery: the group was without a step; see the phases of each resize",
    "evaluation": "evaluation: the run was short beside it, or evaluates too often; raise train.eval_every (now "
    "{eval_every})",
    "start-up": "start-up: the run was short beside its start",
    "checkpoint": "checkpoints: ranks stood still while one was copied or written; raise train.checkpoint_every (now "
    "{checkpoint_every}), or set train.checkpoint_async (now {checkpoint_async})",
    "idle": "idle: nothing was computed between steps; reports stand there: raise train.report_every (now "
    "{report_every})",
}


def verdict(booking: Booking, config: Mapping[str, Any] | None = None) -> str:
    """One sentence on the largest loss, or that none is worth one.

    Args:
        config: the run's, to name what a setting is now.
    """
    lost = max(ADVICE, key=booking.share)
    if not booking.total or booking.share(lost) < WORTH_SAYING:
        return "compute-bound: no loss takes 5 % of the time" if booking.total else "no step was committed"
    sections = config or {}
    now = {**dict(sections.get("data") or {}), **dict(sections.get("train") or {})}
    known = defaultdict(lambda: "unknown", {key: str(value) for key, value in now.items()})
    return f"{booking.share(lost):.0%} {ADVICE[lost].format_map(known)}"


def slow_ranks(log: RunLog) -> dict[int, float]:
    """Ranks of the last attempt that compute much longer than their peers, with the factor on their median.

    Loads are dealt out evenly, so a rank that is slow step after step has a slow machine under it.
    """
    last = log.steps[-1].attempt if log.steps else 0
    steps = [step for step in log.steps if step.attempt == last and len(step.per_rank) > 1]
    if len(steps) < FEWEST_STEPS:
        return {}
    seconds: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        for rank in step.per_rank:
            seconds[int(rank["rank"])].append(float(rank.get("compute", 0.0)))
    middles = {rank: median(values) for rank, values in seconds.items()}
    found = {}
    for number, middle in middles.items():
        others = median(value for other, value in middles.items() if other != number)
        if others > 0 and middle > SLOW * others:
            found[number] = middle / others
    return found
