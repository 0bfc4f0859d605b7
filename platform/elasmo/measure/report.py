"""Renders a run as one self-contained HTML page: no script, no request, light or dark as the reader's system is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

import jinja2
import yaml

from elasmo.measure import figures, units
from elasmo.measure.meter import Metering, meter
from elasmo.measure.run_folder import RunFolder
from elasmo.measure.run_log import Evaluation, Resize, RunLog
from elasmo.measure.verdict import slow_ranks, verdict

SERVED_OF_EACH_MODALITY = 8
LONGEST_VALUE = 120
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
OTHER = "start and other"
PHASES = ("detect", "replan", "start", "restore", "first_step")


@dataclass(frozen=True)
class LineageLayer:
    """One layer of the lake that the run's data came through, newest first."""

    name: str  # gold, silver, bronze, source
    snapshot: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LineageRow:
    """One gold row and the source rows it was made of."""

    row: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Lineage:
    """Where the run's data came from: its layers, and some rows followed to their sources; or why that is not known."""

    layers: tuple[LineageLayer, ...] = ()
    rows: tuple[LineageRow, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Segment:
    """A part of a bar: percent of its width."""

    name: str
    color: int
    percent: float
    value: str


@dataclass(frozen=True)
class Contract:
    """A resize, ready to print."""

    resize: Resize
    phases: list[Segment]
    plan: list[tuple[str, str, str]]  # key, before, after


@dataclass(frozen=True)
class Example:
    """A served example, ready to print; media are base64 or empty."""

    modality: str
    question: str
    expected: str
    answer: str
    correct: bool
    image: str
    audio: str
    record: list[tuple[str, str]] = field(default_factory=list)
    timing: str = ""
    origin: str = ""


def render(folder: RunFolder, lineage: Lineage, commands: Sequence[tuple[str, str]] = ()) -> str:
    """The page of a run.

    Args:
        folder: what the run left behind.
        lineage: where its data came from.
        commands: (what it does, command line) pairs to go on by hand.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("elasmo.measure", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": units.seconds,
        "bytes": units.byte_size,
        "number": units.number,
        "percent": units.percent,
    }
    log, run = folder.log, folder.run
    metering = meter(log)
    return environment.get_template("report.html.j2").render(
        name=str(run.get("name") or folder.path.name),
        run_id=str(run.get("run") or folder.path.resolve().name),
        status=str(run.get("status") or "unknown"),
        started=_clock(run.get("created")),
        headline=_headline(log),
        tiles=_tiles(log, folder.best_step, metering),
        log=log,
        charts={
            "loss": figures.loss_chart(log),
            "accuracy": figures.accuracy_chart(log),
            "step_time": figures.step_time_chart(log),
            "balance": figures.balance_chart(log),
        },
        goodput=log.goodput,
        wall_clock=_wall_clock(log),
        rank_seconds=_rank_seconds(metering),
        booking=metering.booking,
        metering=metering.lines() if metering.tokens else [],
        verdict=verdict(metering.booking, _sections(folder.config)),
        slow=slow_ranks(log),
        contracts=[_contract(resize) for resize in log.resizes],
        evaluations=log.evaluations,
        best_step=folder.best_step,
        balance=_balance(log),
        examples=_examples(folder.served),
        served_total=len(folder.served),
        served_correct=_served_correct(folder.served),
        lineage=lineage,
        figures=_flat({key: value for key, value in folder.demo.items() if key != "config"}),
        facts=_facts(run),
        versions=sorted((str(key), str(value)) for key, value in (run.get("versions") or {}).items()),
        config=folder.config,
        commands=list(commands),
    )


def _headline(log: RunLog) -> str:
    if not log.steps:
        return "No step was committed."
    worlds = sorted({step.world for step in log.steps})
    workers = (
        f"{worlds[0]} to {worlds[-1]} workers" if len(worlds) > 1 else f"{worlds[0]} worker{'s' * (worlds[0] > 1)}"
    )
    resizes = len(log.resizes)
    lost = f"{resizes} resize{'s' * (resizes > 1)}, {len(log.redone)} steps redone" if resizes else "no resize"
    return f"{len(log.steps)} steps on {workers} in {units.seconds(log.goodput.wall)}: {lost}."


def _tiles(log: RunLog, best_step: int | None, metering: Metering) -> list[tuple[str, str, str]]:
    """Label, figure, footnote."""
    tiles: list[tuple[str, str, str]] = []
    shown = _best_evaluation(log, best_step)
    if shown is not None:
        tiles += [
            (f"{name}, held out", units.percent(value), f"step {shown.step}") for name, value in shown.accuracy.items()
        ]
    rates = [step.tokens / step.seconds["step"] for step in log.steps if step.seconds.get("step") and step.tokens]
    if rates:
        tiles.append(("training tokens/s", units.number(median(rates)), "median step"))
    if log.goodput.wall:
        tiles.append(("goodput", units.percent(log.goodput.fraction), "wall clock on steps kept"))
    known = [
        ("MFU", metering.mfu, units.percent, "steps that counted"),
        ("$ per million tokens", metering.usd_per_mtoken, units.number, "whole run"),
        ("joules per token", metering.joules_per_token, units.number, metering.joules.source.split(",")[0]),
    ]
    tiles += [(name, shown(figure.value), note) for name, figure, shown, note in known if figure.value is not None]
    return tiles


def _best_evaluation(log: RunLog, best_step: int | None) -> Evaluation | None:
    """The evaluation of the best checkpoint, else the last one."""
    last = log.evaluations[-1] if log.evaluations else None
    return next((evaluation for evaluation in log.evaluations if evaluation.step == best_step), last)


def _wall_clock(log: RunLog) -> list[Segment]:
    goodput = log.goodput
    parts = [
        ("steps kept", goodput.kept),
        ("steps redone", goodput.redone),
        ("recovery", goodput.recovery),
        ("evaluation", goodput.evaluation),
        ("checkpoints", goodput.checkpoints),
        (OTHER, goodput.other),
    ]
    return _bar(parts)


def _sections(config: str) -> dict[str, Any]:
    """A run's config.yaml; empty where it is missing or damaged."""
    try:
        found = yaml.safe_load(config)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


RANK_COLORS = {
    "useful": 0,
    "data stall": 1,
    "imbalance": 2,
    "bubble": 2,
    "communication": 4,
    "evaluation": 3,
    "checkpoint": 4,
    "redone": 1,
    "recovery": 2,
}
"""As the wall clock has them where it has them; the rest of the colours serve twice, apart from each other."""


def _rank_seconds(metering: Metering) -> list[Segment]:
    """Every rank's seconds by kind, with their price where it is known."""
    rest = ("other work", "start-up", "idle")

    def told(values: Mapping[str, float]) -> list[tuple[str, float]]:
        parts = [(kind, value) for kind, value in values.items() if kind not in rest]
        return [*parts, (OTHER, sum(values.get(kind, 0.0) for kind in rest))]

    usd = dict(told(metering.split(metering.usd))) if metering.usd.value is not None else {}
    return [
        replace(
            part,
            color=RANK_COLORS.get(part.name, part.color),
            value=f"{part.value}, {usd[part.name]:.2g} $" if part.name in usd else part.value,
        )
        for part in _bar(told(metering.booking.seconds))
    ]


def _bar(parts: Sequence[tuple[str, float]]) -> list[Segment]:
    whole = sum(value for _, value in parts)
    return [
        Segment(name, figures.OTHER_COLOR if name == OTHER else color, 100 * value / whole, units.seconds(value))
        for color, (name, value) in enumerate(parts)
        if value > 0
    ]


def _contract(resize: Resize) -> Contract:
    phases = [name for name in (*PHASES, *resize.seconds) if name in resize.seconds and name != "total"]
    bar = _bar([(name.replace("_", " "), resize.seconds[name]) for name in dict.fromkeys(phases)])
    before, after = (dict(_flat(plan)) for plan in (resize.plan_before, resize.plan_after))
    keys = dict.fromkeys((*before, *after))
    return Contract(resize, bar, [(key, before.get(key, "–"), after.get(key, "–")) for key in keys])


def _balance(log: RunLog) -> list[tuple[str, str, str, str]]:
    """Module, median, 95th percentile and worst of max over mean, of the steps on more than one rank."""
    rows = []
    told = [step.balance for step in log.steps if step.world > 1]
    for name in dict.fromkeys(name for loads in told for name in loads):
        values = sorted(loads[name] for loads in told if name in loads)
        high = values[min(len(values) - 1, int(0.95 * len(values)))]
        rows.append((name, *(f"{value:.3f}" for value in (median(values), high, values[-1]))))
    return rows  # type: ignore[return-value]


def _examples(served: Sequence[Mapping[str, Any]]) -> list[Example]:
    """The first few of each modality, every wrong answer among them before a right one."""
    shown: dict[str, int] = {}
    examples = []
    for row in sorted(served, key=lambda row: bool(row.get("correct"))):
        modality = str(row.get("modality", ""))
        shown[modality] = shown.get(modality, 0) + 1
        if shown[modality] <= SERVED_OF_EACH_MODALITY:
            examples.append(_example(row))
    order = list(dict.fromkeys(str(row.get("modality", "")) for row in served))
    return sorted(examples, key=lambda example: order.index(example.modality))


def _example(row: Mapping[str, Any]) -> Example:
    times = [(name, row.get(key)) for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))]
    record, source = row.get("record"), row.get("source")
    return Example(
        modality=str(row.get("modality", "")),
        question=str(row.get("question", "")),
        expected=str(row.get("expected", "")),
        answer=str(row.get("answer", "")),
        correct=bool(row.get("correct")),
        image=_base64(row.get("image_png_b64")),
        audio=_base64(row.get("audio_wav_b64")),
        record=[(str(key), "–" if value is None else str(value)) for key, value in record.items()]
        if isinstance(record, dict)
        else [],
        origin=", ".join(map(str, source)) if isinstance(source, list) else "",
        timing=", ".join(f"{name} {value:.0f} ms" for name, value in times if isinstance(value, int | float)),
    )


def _base64(value: Any) -> str:
    return value if isinstance(value, str) and BASE64.fullmatch(value) else ""


def _served_correct(served: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Modality, right answers, answers."""
    counts: dict[str, tuple[int, int]] = {}
    for row in served:
        right, total = counts.get(str(row.get("modality", "")), (0, 0))
        counts[str(row.get("modality", ""))] = (right + bool(row.get("correct")), total + 1)
    return [(name, right, total) for name, (right, total) in counts.items()]


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What run.json tells beside its versions and what the page's head shows."""
    left_out = {"versions", "name", "status", "run"}
    facts = {key: value for key, value in run.items() if key not in left_out}
    facts |= {key: _clock(facts[key]) for key in ("created", "finished") if key in facts}
    return _flat(facts)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted keys and printable values of a tree of JSON; lists stay one value."""
    rows: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            rows.append((f"{prefix}{key}", units.number(value)))
        else:
            rows.append((f"{prefix}{key}", value if isinstance(value, str) else _brief(value)))
    return rows


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{len(value)} values"


def _clock(value: Any) -> str:
    """A unix time or an ISO string as UTC to the minute; empty when it is neither."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if isinstance(value, str):
        return value
    return ""
