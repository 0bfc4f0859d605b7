"""What to do about a stage that is likely to fail or to overrun, each with the evidence for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elasmo.measure import units
from elasmo.stages.forecast import Limits, StageForecast
from elasmo.stages.stage_run import StageRun

Action = Literal["repair or leave out", "more memory", "smaller blocks", "more workers", "faster source"]
LIKELY = 0.1
"""An overrun that is less likely asks for nothing."""
REPEATED = 2
"""A part is suspected when so many runs broke in it."""
BUSY, IDLE = 0.8, 0.4
"""Share of the wall time that one core was busy: above it more cores help, below it something else was waited for."""
LARGE_PART = 0.1
"""Share of the peak that the largest part's bytes on disk make up, from which smaller parts would help."""


@dataclass(frozen=True)
class Suggestion:
    """An action on a stage, in a sentence, and what it rests on."""

    stage: str
    action: Action
    sentence: str
    evidence: str
    synthetic: bool


def suggest(past: Sequence[StageRun], made: StageForecast, limits: Limits) -> list[Suggestion]:
    """Suggestions for a stage.

    Args:
        past: runs of the stage that tell something (`forecast.telling`), the oldest first.
        made: its forecast.
        limits: what it was held against.
    """
    found = _parts(past)
    if made.overmemory is not None and made.overmemory.value >= LIKELY and made.memory_bytes is not None:
        found += _memory(past, made, limits)
    if made.overtime is not None and made.overtime.value >= LIKELY and made.seconds is not None:
        found += _time(past, made, limits)
    synthetic = made.synthetic_runs > 0
    return [Suggestion(made.stage, action, sentence, evidence, synthetic) for action, sentence, evidence in found]


Found = tuple[Action, str, str]


def _parts(past: Sequence[StageRun]) -> list[Found]:
    """Parts that runs broke in again and again, and that none has passed since."""
    broken: Counter[str] = Counter()
    last: dict[str, StageRun] = {}
    for run in past:
        for part in run.parts:
            if part.outcome == "done":
                broken.pop(part.name, None)
        if run.broke_in is not None:
            broken[run.broke_in] += 1
            last[run.broke_in] = run
    bad = sum(run.outcome != "done" for run in past)
    return [
        (
            "repair or leave out",
            f"repair {part}, or leave it out",
            f"{count} of {bad} bad runs broke in it, the last with: {last[part].error}",
        )
        for part, count in broken.most_common()
        if count >= REPEATED
    ]


def _memory(past: Sequence[StageRun], made: StageForecast, limits: Limits) -> list[Found]:
    assert made.memory_bytes is not None and made.overmemory is not None
    need = made.memory_bytes.high
    evidence = "; ".join(made.overmemory.reasons)
    found: list[Found] = [("more memory", f"give it {units.byte_size(need)}", evidence)]
    peaks = [(run.largest_part_bytes, run.memory_bytes) for run in past if run.memory_bytes and run.largest_part_bytes]
    if made.stage == "copy":
        found.append(("smaller blocks", "halve `chunk_rows` of the SQL table", "a chunk of rows is held in memory"))
    elif peaks and peaks[-1][0] >= LARGE_PART * peaks[-1][1]:
        part, peak = (units.byte_size(size) for size in peaks[-1])
        why = f"the largest part was {part} on disk where the peak was {peak}, and a part is held whole"
        found.append(("smaller blocks", "cut its input into smaller files", why))
    return found


def _time(past: Sequence[StageRun], made: StageForecast, limits: Limits) -> list[Found]:
    assert made.seconds is not None and limits.seconds is not None
    shares = [run.cpu_s / run.seconds for run in past if run.outcome == "done" and run.cpu_s and run.seconds]
    if not shares:
        return []
    share = sorted(shares)[len(shares) // 2]
    evidence = f"a CPU was busy {units.percent(share)} of the time, in the median of {len(shares)} runs"
    if share >= BUSY:
        workers = math.ceil(made.seconds.high / limits.seconds)
        return [("more workers", f"cut the dataset into {workers} that are ingested at once", evidence)]
    if share < IDLE:
        return [
            (
                "faster source",
                "it waits for its source, its disk or other processes; more workers would wait as well",
                evidence,
            )
        ]
    return []
