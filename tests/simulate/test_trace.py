from __future__ import annotations

import pytest

from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.plan import Plan
from elasmo.simulate.trace import chrome_trace
from elasmo.simulate.training import simulate_step


def test_a_pipeline_has_a_row_a_rank_and_a_bar_a_pass() -> None:
    plan = Plan(seq=4096, global_batch=8, pp=4, dp=2)
    step = simulate_step(known_model("Llama-3-8B"), plan, parse_cluster("8xH100"), events=True)
    events = chrome_trace(step)["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == 2 * 4 * 4 and {bar["tid"] for bar in bars} == {0, 1, 2, 3}
    assert step.timeline is not None
    assert max(bar["ts"] + bar["dur"] for bar in bars) == pytest.approx(step.timeline.end_s * 1e6)


def test_a_step_without_a_pipeline_shows_what_its_seconds_go_to() -> None:
    step = simulate_step(known_model("Llama-3-8B"), Plan(seq=4096, global_batch=8, dp=8), parse_cluster("8xH100"))
    bars = [event for event in chrome_trace(step)["traceEvents"] if event["ph"] == "X"]
    assert sum(bar["dur"] for bar in bars) == pytest.approx(step.seconds * 1e6)
