"""The report's charts of a run: loss per modality, held-out accuracy, step time by part, balance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elasmo.measure import units
from elasmo.measure.chart import (
    MAX_BINS,
    Axis,
    Line,
    bins,
    clipped_height,
    dots,
    line,
    path,
    stacked_areas,
    step_axis,
    value_axis,
)
from elasmo.measure.run_log import Resize, RunLog, Step

FEW_POINTS = 40
OTHER_COLOR = 5
STEP_PARTS = ("data_wait", "compute", "communication", "other")


@dataclass(frozen=True)
class Legend:
    """A named colour with its figure."""

    name: str
    color: int
    value: str


@dataclass(frozen=True)
class Trace:
    """A drawn series: a stroke, with the faint path of all its points or a dot for each of few; or a filled area."""

    name: str
    color: int
    path: str
    points: str = ""
    dots: str = ""
    filled: bool = False


@dataclass(frozen=True)
class Marker:
    """A resize: a vertical line at `left` percent, and the redone steps after it as a band of `width` percent."""

    left: float
    width: float
    label: str
    row: int  # labels of neighbours stand below each other


@dataclass(frozen=True)
class Hover:
    """A strip of the chart that tells its values; percent of the width."""

    left: float
    width: float
    text: str


@dataclass(frozen=True)
class Chart:
    """All that the page needs to draw one chart. Ticks are (percent from the left or the bottom, label)."""

    title: str
    summary: str  # for readers who do not see the picture
    x: Axis
    y: Axis
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    traces: list[Trace]
    legend: list[Legend]
    markers: list[Marker]
    hovers: list[Hover]
    note: str = ""


def loss_chart(log: RunLog) -> Chart | None:
    """Training loss per modality over the steps that count; None before the first step."""
    if not log.steps:
        return None
    losses = [step.loss_by_modality or {"all": step.loss} for step in log.steps]
    steps = [step.step for step in log.steps]
    names = log.modalities or ("all",)
    lines = [line(name, list(zip(steps, (row.get(name) for row in losses), strict=True))) for name in names]
    broken = sum(any(not math.isfinite(value) for value in row.values()) for row in losses)
    note = "Faint: every step. Strong: running median."
    if broken:
        note += f" {broken} steps have a loss that is not finite; it is not drawn."
    return _lines("Loss per modality", lines, range(len(lines)), steps, value_axis(lines), units.number, log, note)


def accuracy_chart(log: RunLog) -> Chart | None:
    """Held-out accuracy per modality over the evaluations; None with fewer than two of them."""
    if len(log.evaluations) < 2:
        return None
    steps = [evaluation.step for evaluation in log.evaluations]
    names = list(dict.fromkeys(name for evaluation in log.evaluations for name in evaluation.accuracy))
    lines = [
        line(name, [(evaluation.step, evaluation.accuracy.get(name)) for evaluation in log.evaluations], smooth=False)
        for name in names
    ]
    known = list(dict.fromkeys((*log.modalities, *names)))  # a modality keeps the colour of its loss
    colors = [known.index(name) for name in names]
    return _lines("Held-out accuracy", lines, colors, steps, Axis(0.0, 1.0), units.percent, log, tick="{:.0%}".format)


def balance_chart(log: RunLog) -> Chart | None:
    """Largest over mean load of the ranks, a line a module: 1 is even. None where no step on several ranks tells it."""
    told = [step for step in log.steps if step.balance and step.world > 1]
    if not told:
        return None
    steps = [step.step for step in told]
    names = list(dict.fromkeys(name for step in told for name in step.balance))
    lines = [line(name, [(step.step, step.balance.get(name)) for step in told]) for name in names]
    top = max((value for series in lines for _, value in series.points), default=1.0)
    y = Axis(1.0, max(1.1, 1.0 + (top - 1.0) * 1.1))
    note = "Largest rank over the mean of the ranks, in steps on more than one rank; 1 is even."
    return _lines("Balance across ranks", lines, range(len(lines)), steps, y, units.number, log, note)


def step_time_chart(log: RunLog) -> Chart | None:
    """Seconds of a step, stacked by part; None where no step tells them."""
    steps = [step for step in log.steps if step.seconds]
    if not steps:
        return None
    groups = bins([step.step for step in steps], [parts_of(step) for step in steps])
    x = Axis(groups[0].first - 0.5, groups[-1].last + 0.5)
    y = Axis(0.0, clipped_height([group.total for group in groups]))
    areas = stacked_areas(groups, STEP_PARTS, x, y)
    totals = {name: sum(parts_of(step)[name] for step in steps) for name in STEP_PARTS}
    whole = sum(totals.values()) or 1.0
    over = [group for group in groups if group.total > y.high]
    note = f"Mean of each {-(-len(steps) // len(groups))} steps. " if len(groups) < len(steps) else ""
    if over:
        slowest = max(steps, key=lambda step: sum(parts_of(step).values()))
        note += f"Cut off at the top: step {slowest.step} took {units.seconds(sum(parts_of(slowest).values()))}."
    legend = [
        Legend(name.replace("_", " "), _part_color(name), units.percent(totals[name] / whole)) for name in STEP_PARTS
    ]
    hovers = [
        Hover(
            x.position(group.first - 0.5) / 10,
            (x.position(group.last + 0.5) - x.position(group.first - 0.5)) / 10,
            f"{_steps(group.first, group.last)}: {units.seconds(group.total)}\n"
            + "\n".join(f"{name.replace('_', ' ')} {units.seconds(group.parts[name])}" for name in STEP_PARTS),
        )
        for group in groups
    ]
    return Chart(
        title="Step time",
        summary="Step time by part: " + ", ".join(f"{item.name} {item.value}" for item in legend),
        x=x,
        y=y,
        x_ticks=_step_ticks(x),
        y_ticks=[(y.position(value) / 10, units.seconds(value) if value else "0") for value in y.ticks(4)],
        traces=[Trace(name, _part_color(name), areas[name], filled=True) for name in STEP_PARTS],
        legend=legend,
        markers=_markers(log.resizes, x),
        hovers=hovers,
        note=note.strip(),
    )


def parts_of(step: Step) -> dict[str, float]:
    """The seconds of a step by part; what the parts do not explain of the step is `other`."""
    parts = {name: step.seconds.get(name, 0.0) for name in STEP_PARTS}
    unexplained = step.seconds.get("step", 0.0) - sum(parts.values())
    parts["other"] += max(0.0, unexplained)
    return parts


def _part_color(name: str) -> int:
    return OTHER_COLOR if name == "other" else STEP_PARTS.index(name)


def _lines(
    title: str,
    lines: Sequence[Line],
    colors: Sequence[int],
    steps: Sequence[int],
    y: Axis,
    shown: Callable[[float], str],
    log: RunLog,
    note: str = "",
    tick: Callable[[float], str] = units.number,
) -> Chart:
    x = step_axis(steps)
    drawn = [(series, color) for series, color in zip(lines, colors, strict=True) if series.points]
    changes = [f"{series.name} from {shown(series.trend[0][1])} to {shown(series.last)}" for series, _ in drawn]
    return Chart(
        title=title,
        summary=f"{title}: {'; '.join(changes)}",
        x=x,
        y=y,
        x_ticks=_step_ticks(x),
        y_ticks=[(y.position(value) / 10, tick(value)) for value in y.ticks()],
        traces=[
            Trace(
                series.name,
                color,
                path(series.trend, x, y),
                path(series.points, x, y) if series.points != series.trend else "",
                dots(series.points, x, y) if len(series.points) <= FEW_POINTS else "",
            )
            for series, color in drawn
        ],
        legend=[Legend(series.name, color, shown(series.last)) for series, color in drawn],
        markers=_markers(log.resizes, x),
        hovers=_hovers([series for series, _ in drawn], steps, x, shown),
        note=note,
    )


def _step_ticks(x: Axis) -> list[tuple[float, str]]:
    return [(x.position(value) / 10, units.number(value)) for value in x.ticks() if value == int(value)]


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _markers(resizes: Sequence[Resize], x: Axis) -> list[Marker]:
    markers: list[Marker] = []
    for resize in sorted(resizes, key=lambda event: event.restored_step):
        left = x.position(resize.restored_step) / 10
        width = x.position(resize.restored_step + resize.steps_redone) / 10 - left
        near = [marker for marker in markers if abs(marker.left - left) < 20]
        markers.append(Marker(left, width, f"{resize.from_world} → {resize.to_world} workers", len(near)))
    return markers


def _hovers(lines: Sequence[Line], steps: Sequence[int], x: Axis, shown: Callable[[float], str]) -> list[Hover]:
    """Up to a hundred strips that meet halfway, each with the last trend value of every line in it."""
    size = max(1, math.ceil(len(steps) / MAX_BINS))
    groups = [steps[at : at + size] for at in range(0, len(steps), size)]
    meets = [(before[-1] + after[0]) / 2 for before, after in pairwise(groups)]
    edges = [x.position(value) / 10 for value in (x.low, *meets, x.high)]
    trends = [dict(series.trend) for series in lines]
    hovers = []
    for members, (left, right) in zip(groups, pairwise(edges), strict=True):
        text = [_steps(members[0], members[-1])]
        for series, trend in zip(lines, trends, strict=True):
            values = [trend[step] for step in members if step in trend]
            text += [f"{series.name} {shown(values[-1])}"] if values else []
        hovers.append(Hover(left, right - left, "\n".join(text)))
    return hovers
