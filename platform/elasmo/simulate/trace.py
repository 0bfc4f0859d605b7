"""A simulated step as a Chrome trace, for chrome://tracing or Perfetto: a row a pipeline rank, a bar a pass."""

from __future__ import annotations

from typing import Any

from elasmo.simulate.training import Step

NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}


def chrome_trace(step: Step) -> dict[str, Any]:
    """Trace events in microseconds; without a pipeline one row shows what the step's seconds go to, one by one."""
    if step.timeline is not None:
        bars = [
            (event.rank, f"{NAMES[event.kind]} {event.micro_batch}", event.start_s, event.end_s, event.stage)
            for event in step.timeline.events
        ]
    else:
        bars, at = [], 0.0
        for name, seconds in step.breakdown.items():
            bars.append((0, name, at, at + seconds, 0))
            at += seconds
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"pipeline rank {rank}"}}
        for rank in sorted({bar[0] for bar in bars})
    ]
    events += [
        {"ph": "X", "pid": 0, "tid": rank, "name": name, "ts": start * 1e6, "dur": (end - start) * 1e6,
         "args": {"virtual stage": stage}}
        for rank, name, start, end, stage in bars
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"simulated": "true", "plan": str(step.plan)}}
