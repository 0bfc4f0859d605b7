"""A plan or a simulated step as one self-contained HTML page: no script, no request, light or dark as the reader is.

The step as a timeline of stages, memory by category against the capacity, what the seconds go to, the scaling curve and
the front of price and energy. Every number on it is simulated, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from elasmo.measure.chart import SIDE, Axis, dots, path
from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.explain import Explanation
from elasmo.simulate.flops import FORMULA
from elasmo.simulate.schedule import Event, Timeline
from elasmo.simulate.train_report import CATEGORIES, PARTS, Run, facts, known_or
from elasmo.simulate.training import USABLE, Step

MOST_BARS = 900
"""Passes that a timeline draws; of more, the start and the end are shown."""
COLORS = {"F": 0, "B": 1, "W": 2}
PASSES = {"F": "forward", "B": "backward", "W": "weight gradient"}


@dataclass(frozen=True)
class Segment:
    """A part of a bar: percent of its width, and which colour of the page's palette."""

    name: str
    color: int
    percent: float
    value: str


@dataclass(frozen=True)
class Bar:
    """A stacked bar with its label and what stands behind it."""

    label: str
    value: str
    parts: tuple[Segment, ...]
    fits: bool = True


@dataclass(frozen=True)
class Pass:
    """A rectangle of the timeline in its square of 1000."""

    x: float
    width: float
    y: float
    height: float
    color: int
    faint: float
    text: str


@dataclass(frozen=True)
class Window:
    """A part of the step's time: passes by rank, and ticks in seconds."""

    title: str
    rows: int
    passes: tuple[Pass, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class Curve:
    """A chart of points: its lines and dots as SVG paths, and ticks in per cent of the square."""

    title: str
    note: str
    x_name: str
    y_name: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, int], ...]
    lines: tuple[tuple[int, str, bool], ...]  # colour, path, dashed
    marks: tuple[tuple[int, str, bool], ...]  # colour, path of dots, faint
    labels: tuple[tuple[float, float, str], ...] = ()


def render(
    run: Run,
    plans: Sequence[Step] = (),
    explanation: Explanation | None = None,
    curve: Sequence[tuple[int, Step | None]] = (),
    fitting: Sequence[Step] = (),
    front: Sequence[Step] = (),
    command: str = "",
) -> str:
    """The page of a run.

    Args:
        plans: others to compare memory and time with, best first.
        curve: the best plan for each number of accelerators.
        fitting: every plan that fits, the cloud behind `front`.
        command: the command line that made it.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("elasmo.simulate", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    step = run.step
    return environment.get_template("page.html.j2").render(
        title=run.model.name or "model",
        subtitle=f"{run.model.parameters / 1e9:.1f} B parameters on {run.cluster}: "
        f"{step.plan.global_batch:,} sequences of {step.plan.seq:,} tokens, {step.plan.dtype}",
        plan=str(step.plan),
        tiles=tiles(run),
        facts=facts(run),
        windows=windows(step),
        passes=[(PASSES[kind], COLORS[kind], "") for kind in kinds(step)],
        spent=time_segments(step),
        memory=memory_bars([step, *(each for each in plans if each.plan != step.plan)], run.cluster),
        capacity=100.0 * USABLE,
        plans=[plan_row(each) for each in plans],
        explanation=explanation,
        curve=scaling_curve(curve),
        table=[curve_row(count, each) for count, each in curve],
        front=front_curve(fitting, front),
        front_rows=[plan_row(each) for each in front],
        formula=FORMULA,
        command=command,
    )


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """What a reader looks for first: name, figure, what it is of."""
    step = run.step
    return [
        ("step", f"{step.seconds:.2f} s", f"{step.plan.micro_batches} micro-batches a rank"),
        ("tokens/s", f"{step.tokens_per_s:,.0f}", f"{step.tokens_per_s_each:,.0f} an accelerator"),
        ("MFU", f"{step.mfu:.1%}", f"HFU {step.hfu:.1%}"),
        ("memory", f"{step.memory.total / GIB:.1f} GiB", f"of {_capacity(run.cluster) / GIB:.0f} GiB"),
        ("cost", known_or(step.usd_per_mtoken, "{:.3g} $"), "a million tokens"),
        ("energy", known_or(step.joules_per_token, "{:.3g} J"), f"a token, {known_or(step.power_w, '{:.0f} W')} each"),
        ("goodput", f"{run.left.useful:.1%}", "after failures and checkpoints"),
    ]


def _capacity(cluster: Cluster) -> float:
    return min(group.chip.memory for group in cluster.groups)


def time_segments(step: Step) -> list[Segment]:
    """What the step's seconds go to, the longest first."""
    ordered = sorted(step.breakdown.items(), key=lambda each: -each[1])
    return [
        Segment(
            PARTS.get(name, name),
            number,
            100 * seconds / step.seconds,
            f"{seconds:.3g} s, {seconds / step.seconds:.1%}",
        )
        for number, (name, seconds) in enumerate(ordered)
    ]


def memory_bars(steps: Sequence[Step], cluster: Cluster) -> list[Bar]:
    """Of each plan the bytes of its fullest rank, as a share of the accelerator's."""
    whole = _capacity(cluster)
    bars = []
    for step in steps[:6]:
        parts = tuple(
            Segment(
                meaning, number, 100 * getattr(step.memory, name) / whole, f"{getattr(step.memory, name) / GIB:.1f} GiB"
            )
            for number, (name, meaning) in enumerate(CATEGORIES.items())
            if getattr(step.memory, name) > 0
        )
        bars.append(
            Bar(str(step.plan), f"{step.memory.total / GIB:.1f} GiB", parts, step.memory.total <= USABLE * whole)
        )
    return bars


def kinds(step: Step) -> list[str]:
    """Passes that the step's pipeline has."""
    seen = {event.kind for event in step.timeline.events} if step.timeline is not None else set()
    return [kind for kind in PASSES if kind in seen]


def windows(step: Step) -> list[Window]:
    """The step as stages by time: whole, or its start and its end where it has too many passes."""
    made = step.timeline
    if made is None:
        return []
    if len(made.events) <= MOST_BARS:
        return [_window("the pipeline of a step", made, 0.0, made.end_s)]
    span = made.end_s * MOST_BARS / 2 / len(made.events)
    return [
        _window(f"its first {span:.2f} s", made, 0.0, span),
        _window(f"its last {span:.2f} s", made, made.end_s - span, made.end_s),
    ]


def _window(title: str, made: Timeline, start: float, end: float) -> Window:
    rows = len(made.bubble_s)
    height = SIDE / rows
    chunks = 1 + max(event.stage for event in made.events) // rows
    passes = []
    for event in made.events:
        if event.end_s <= start or event.start_s >= end:
            continue
        a, b = (SIDE * (min(max(at, start), end) - start) / (end - start) for at in (event.start_s, event.end_s))
        faint = 1.0 - 0.5 * (event.stage // rows) / chunks
        passes.append(
            Pass(a, b - a, event.rank * height + 0.06 * height, 0.88 * height, COLORS[event.kind], faint, _said(event))
        )
    axis = Axis(start, end)
    ticks = tuple((axis.position(at) / 10, f"{at:.3g} s") for at in axis.ticks(6))
    return Window(title, rows, tuple(passes), ticks)


def _said(event: Event) -> str:
    kind = PASSES[event.kind]
    return (
        f"rank {event.rank}, {kind} of micro-batch {event.micro_batch}, virtual stage {event.stage}: "
        f"{event.start_s:.3f} to {event.end_s:.3f} s"
    )


def plan_row(step: Step) -> tuple[str, ...]:
    """A plan as cells: accelerators, layout, step, MFU, memory, price, energy."""
    return (
        f"{step.plan.world:,}", str(step.plan), f"{step.seconds:.2f} s", f"{step.mfu:.1%}",
        f"{step.memory.total / GIB:.1f} GiB", known_or(step.usd_per_mtoken, "{:.3g}"),
        known_or(step.joules_per_token, "{:.3g}"),
    )  # fmt: skip


def curve_row(count: int, step: Step | None) -> tuple[str, ...]:
    return (f"{count:,}", "does not fit", "", "", "", "", "") if step is None else plan_row(step)


def scaling_curve(curve: Sequence[tuple[int, Step | None]]) -> Curve | None:
    """Tokens a second by accelerators, both in logarithms, beside linear scaling from the first that fits."""
    points = [(float(count), step.tokens_per_s) for count, step in curve if step is not None]
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    ideal = [first, (last[0], first[1] * last[0] / first[0])]
    x = Axis(first[0] / 1.15, last[0] * 1.15, "log")
    y = Axis(first[1] / 1.4, max(ideal[1][1], last[1]) * 1.4, "log")
    kept = last[1] / ideal[1][1]
    every = max(1, -(-len(points) // 7))
    return Curve(
        "Tokens a second", f"At {last[0]:,.0f} accelerators {kept:.0%} of linear scaling is left.",
        "accelerators", "tokens/s",
        tuple((x.position(count) / 10, f"{count:,.0f}") for count, _ in points[::every]),
        tuple((y.position(at) / 10, _short(at)) for at in y.ticks(5)),
        (("simulated", 0), ("linear", 5)),
        ((5, path(ideal, x, y), True), (0, path(points, x, y), False)),
        ((0, dots(points, x, y), False),),
    )  # fmt: skip


def front_curve(fitting: Sequence[Step], front: Sequence[Step]) -> Curve | None:
    """Energy by time a token of every plan that fits, and the front of those that none beats."""
    cloud = [_place(step) for step in fitting]
    best = [_place(step) for step in front]
    known = [each for each in [*cloud, *best] if each is not None]
    if len(known) < 2 or not any(each is not None for each in best):
        return None
    kept = [each for each in best if each is not None]
    near = max(each[0] for each in kept) * 1.6, max(each[1] for each in kept) * 1.6  # the rest is no choice
    shown = [each for each in cloud if each is not None and each[0] <= near[0] and each[1] <= near[1]]
    xs, ys = [each[0] for each in [*shown, *kept]], [each[1] for each in [*shown, *kept]]
    x, y = Axis(*_around(xs)), Axis(*_around(ys))
    note = "Left and below is better. The third objective is the time of a step, in the table."
    return Curve(
        "Price and energy of a token", note, "$ a million tokens", "J a token",
        tuple((x.position(at) / 10, f"{at:.3g}") for at in x.ticks(5)),
        tuple((y.position(at) / 10, f"{at:.3g}") for at in y.ticks(5)),
        (("plans that fit", 5), ("none beats", 1)),
        ((1, path(sorted(kept), x, y), False),),
        ((5, dots(shown, x, y), True), (1, dots(kept, x, y), False)),
    )  # fmt: skip


def _place(step: Step) -> tuple[float, float] | None:
    if step.usd_per_mtoken is None or step.joules_per_token is None:
        return None
    return step.usd_per_mtoken, step.joules_per_token


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    edge = 0.08 * (high - low) or 0.05 * high
    return max(0.0, low - edge), high + edge


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
