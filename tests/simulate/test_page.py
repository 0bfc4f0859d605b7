from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.explain import explain
from elasmo.simulate.goodput import Failures
from elasmo.simulate.page import MOST_BARS, front_curve, memory_bars, render, scaling_curve, time_segments, windows
from elasmo.simulate.plan import Plan
from elasmo.simulate.search import Job, search
from elasmo.simulate.train_report import Run, run
from elasmo.simulate.training import simulate_step

MODEL, CLUSTER = known_model("Llama-3-8B"), parse_cluster("8xH100")
PLAN = Plan(seq=4096, global_batch=16, tp=2, pp=4, dp=1)


@pytest.fixture(scope="module")
def made() -> Run:
    return run(MODEL, CLUSTER, simulate_step(MODEL, PLAN, CLUSTER, events=True), Failures(), True)


def test_a_timeline_has_a_bar_a_pass_at_its_time(made: Run) -> None:
    window = windows(made.step)[0]
    assert made.step.timeline is not None
    events = made.step.timeline.events
    assert len(window.passes) == len(events) == 2 * 4 * 16 and window.rows == 4
    for bar, event in zip(window.passes, events, strict=True):
        assert bar.x / 1000 == pytest.approx(event.start_s / made.step.timeline.end_s)
        assert bar.width / 1000 == pytest.approx((event.end_s - event.start_s) / made.step.timeline.end_s)
        assert event.rank * 250 < bar.y < bar.y + bar.height < (event.rank + 1) * 250


def test_a_long_step_shows_its_start_and_its_end() -> None:
    step = simulate_step(MODEL, PLAN.having(global_batch=1024), CLUSTER, events=True)
    first, last = windows(step)
    assert len(first.passes) + len(last.passes) < 1.2 * MOST_BARS
    assert max(bar.x + bar.width for bar in (*first.passes, *last.passes)) <= 1000.01
    assert windows(simulate_step(MODEL, PLAN.having(pp=1, dp=4), CLUSTER, events=True)) == []


def test_bars_add_up(made: Run) -> None:
    assert sum(part.percent for part in time_segments(made.step)) == pytest.approx(100)
    bar = memory_bars([made.step], CLUSTER)[0]
    assert sum(part.percent for part in bar.parts) == pytest.approx(made.step.memory.total / (80 * GIB) * 100)
    assert not memory_bars(
        [simulate_step(MODEL, PLAN.having(tp=1, dp=2, pp=4, zero=0, micro_batch=8), CLUSTER)], CLUSTER
    )[0].fits


def test_a_curve_holds_its_points(made: Run) -> None:
    curve = scaling_curve([(8, None), (16, made.step), (32, made.step), (64, made.step)])
    assert curve is not None and len(re.findall(r"[ML]", curve.lines[1][1])) == 3
    assert "25% of linear" in curve.note  # the same tokens/s on four times as many
    assert scaling_curve([(8, made.step)]) is None


def test_a_front_without_prices_is_not_drawn() -> None:
    tpu = parse_cluster("8xTPU v5p")
    found = search(MODEL, tpu, Job(4096, 16))
    assert front_curve(found.fitting, found.front) is None


def test_a_page_is_whole_and_loads_nothing(made: Run) -> None:
    found = search(MODEL, CLUSTER, Job(4096, 16))
    text = render(
        made, found.steps, explain(MODEL, made.step, CLUSTER), [(8, made.step), (16, None), (32, made.step)],
        found.fitting, found.front, "elasmo plan <&>",
    )  # fmt: skip
    assert "<script" not in text and "http" not in text and "elasmo plan &lt;&amp;&gt;" in text
    for name in (
        "Stages by time",
        "Memory of the fullest rank",
        "Scaling",
        "does not fit",
        "What binds",
        "nothing beats",
    ):
        assert name in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "nan" not in text.lower().replace("finance", "")
    assert "Scaling" not in render(made)
