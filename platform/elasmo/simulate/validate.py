"""Scores the training model against published rows, each predicted by constants that were fitted without its source.

A quantity of three or more sources leaves one source out at a time; fewer leave a hardware type out, and say so.
Memory has no fitted constant, so all of it counts as unseen.
"""

from __future__ import annotations

import csv
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.calibration import Calibration, default_calibration
from elasmo.simulate.fit_operators import errors, fit_products, timed_products
from elasmo.simulate.fit_training import (
    TABLES,
    Measured,
    Slopes,
    choose,
    fit,
    leave_out,
    log_errors,
    measured_steps,
    prior,
)
from elasmo.simulate.memory import layer_activation_bytes, state_bytes, training_memory
from elasmo.simulate.model import Model, decoder
from elasmo.simulate.plan import Plan
from elasmo.simulate.published import optional_number, read_table, scored
from elasmo.simulate.row import predict_row, read_row
from elasmo.simulate.score import Point, Score, kendall_tau, score, sweep_taus

TIME, MOE_TIME, MEMORY, STATES, PRODUCT = (
    "step time, dense", "step time, experts", "memory", "model states (ZeRO formula)", "matrix product",
)  # fmt: skip


def tables_in(folder: Path | None) -> list[dict[str, str]]:
    """Rows of the training tables of a folder, or of those that ship with the package."""
    if folder is None:
        return [row for table in TABLES for row in read_table(table)]
    found = []
    for path in sorted(folder.glob("T*.csv")):
        with path.open(newline="") as file:
            rows = [{key: value or "" for key, value in row.items() if key} for row in csv.DictReader(file)]
        found += [{"source_id": path.stem, **row} for row in rows if "n_gpu" in row and "seq_len" in row]
    return found


def time_points(rows: Sequence[Measured], fitted: tuple[Calibration, Slopes, list] | None = None) -> list[Point]:
    """Each row predicted without its source, or without its hardware type where its kind has too few sources."""
    found = fitted or fit(rows)
    chosen = found[2]
    points: list[Point] = []
    dense = sorted({row.source for row in rows if not row.experts})
    for source in dense:
        left = [row.source == source for row in rows]
        points += _held_out(rows, left, found[1], chosen, TIME, source, experts=False)
    # A source whose hardware no other has cannot be predicted from others: leave one hardware type out instead.
    for hardware in sorted({row.reading.cluster.groups[0].chip.name for row in rows if row.generation == "tpu"}):
        left = [row.reading.cluster.groups[0].chip.name == hardware for row in rows]
        points += _held_out(rows, left, found[1], chosen, f"{TIME}, hardware type", hardware, experts=False)
    for hardware in sorted({row.reading.cluster.groups[0].chip.name for row in rows if row.experts}):
        left = [row.experts and row.reading.cluster.groups[0].chip.name == hardware for row in rows]
        points += _held_out(rows, left, found[1], chosen, f"{MOE_TIME}, hardware type", hardware, experts=True)
    for source in sorted({row.source for row in rows if row.experts}):
        left = [row.source == source for row in rows]
        points += _held_out(rows, left, found[1], chosen, MOE_TIME, source, experts=True)
    return points


def _held_out(
    rows: Sequence[Measured], left: Sequence[bool], slopes: Slopes, chosen: list, quantity: str, name: str,
    experts: bool,
) -> list[Point]:  # fmt: skip
    constants = leave_out(rows, left, slopes, chosen)
    own = [row for row, out in zip(rows, left, strict=True) if out and row.experts == experts]
    return step_points(own, constants, quantity, name)


def step_points(rows: Sequence[Measured], constants: Calibration, quantity: str, held_out: str) -> list[Point]:
    """Predicted and measured seconds a token of steps."""
    predicted = log_errors(constants, choose(rows, constants))
    points = []
    for row, off in zip(rows, predicted, strict=True):
        tokens = row.reading.plans[0].global_batch * row.reading.plans[0].seq
        each = row.seconds / tokens * row.reading.cluster.count
        sweep = ""
        if not row.experts:
            sweep = f"{row.source} {row.row['hw'].split()[0]} {row.row['precision']} {row.row['model']}"
        points.append(
            Point(quantity, row.source, held_out, each * math.exp(off), each, sweep, row.row.get("row_id", ""))
        )
    return points


def memory_points(rows: Iterable[dict[str, str]]) -> list[Point]:
    """GB a rank of rows that state a peak, and the parts that Korthikanti et al. (2022) measured."""
    points = []
    for row in rows:
        stated = optional_number(row.get("mem_gb"))
        if not stated or not scored(row):
            continue
        try:
            step = predict_row(row)
        except ValueError:
            continue
        points.append(
            Point(MEMORY, row["source_id"], "nothing fitted", step.memory.total / GIB, stated, "", row["row_id"])
        )
    return points + korthikanti_points()


def korthikanti_points() -> list[Point]:
    """Model states and activations of Megatron's four models; figures 1 and, relative, 7."""
    kept = {"none": (False, ()), "seq": (True, ()), "sel": (False, ("attention",)), "seq+sel": (True, ("attention",)),
            "full": (False, ("full",))}  # fmt: skip
    points = []
    for row in read_table("T03b_korthikanti2022_memory"):
        stated = optional_number(row["value"])
        if not scored(row) or stated is None:
            continue
        number = {key: int(row[key]) for key in ("layers", "hidden", "heads", "seq_len", "tp", "pp", "vp", "mbs")}
        model = decoder(
            layers=number["layers"], hidden=number["hidden"], heads=number["heads"], ffn=4 * number["hidden"],
            vocab=51200, gated=False, tied=True, bias=True, norm_width=2,
        )  # fmt: skip
        plan = Plan(
            seq=number["seq_len"], global_batch=number["pp"] * 8 * number["mbs"], micro_batch=number["mbs"],
            tp=number["tp"], pp=number["pp"], chunks=number["vp"],
            schedule="interleaved" if number["vp"] > 1 else "1f1b", zero=0, fused_attention=False,
            dropout=True,
        )  # fmt: skip
        text = row["quantity"]
        if text.startswith("params"):
            predicted = training_memory(model, plan)
            got = (predicted.weights + predicted.gradients + predicted.optimizer) / GIB
        elif text.startswith("activations"):
            got = _activations(model, plan, *kept["seq+sel" if "selective" in text else "none"]) / GIB
        else:
            now, base = (_activations(model, plan, *kept[name]) for name in (text.split(": ")[1], "none"))
            if text.endswith(": none"):
                continue
            got = 100 * now / base
        points.append(Point(MEMORY, "T03b", "nothing fitted", got, stated, "", text))
    return points


def _activations(model: Model, plan: Plan, spread: bool, kept: tuple[str, ...]) -> float:
    """All layers of the first pipeline rank with its micro-batches in flight."""
    own = plan.having(sequence_parallel=spread, recompute=frozenset(kept))
    each = layer_activation_bytes(model.hidden, model.layers[0], own, own.tokens, own.seq)
    ahead = (plan.pp - 1) / (plan.pp * plan.chunks) if plan.chunks > 1 else 0.0
    return each * model.depth * (1 + ahead)


def state_points() -> list[Point]:
    """Model states under ZeRO beside the paper's formula."""
    points = []
    for row in read_table("T15_zero_memory_formula"):
        size, ranks, stage = float(row["params_b"]) * 1e9, int(row["dp"]), int(row["zero_stage"])
        points.append(
            Point(
                STATES, "T15", "nothing fitted", state_bytes(size, ranks, stage).total / 1e9,
                float(row["model_state_gb_per_gpu"]), "", f"{row['params_b']}B dp={ranks} zero={stage}",
            )
        )  # fmt: skip
    return points


def product_points() -> list[Point]:
    """Operator times, each model's predicted by constants that were fitted without it."""
    rows = timed_products()
    points = []
    for name in sorted({row.model for row in rows}):
        constants = fit_products(prior(), [row for row in rows if row.model != name][::4])
        own = [row for row in rows if row.model == name]
        points += [
            Point(PRODUCT, f"S03 {row.hw}", name, row.seconds * math.exp(off), row.seconds)
            for row, off in zip(own, errors(constants, own), strict=True)
        ]
    return points


GOALS = {TIME: (0.06, 0.15), MOE_TIME: (0.12, None), MEMORY: (0.08, None), STATES: (0.001, None), PRODUCT: (0.10, None)}


def report(points: Sequence[Point]) -> str:
    """The accuracy page: a table of quantity and source, and the ranks within sweeps."""
    lines = [
        "| quantity | source | fitted without | n | median | p90 | worst | bias |",
        "|---|---|---|---|---|---|---|---|",
    ]
    quantities = list(dict.fromkeys(point.quantity for point in points))
    for quantity in quantities:
        own = [point for point in points if point.quantity == quantity]
        by_hardware = quantity.endswith("hardware type")
        names = list(dict.fromkeys(p.held_out if by_hardware else p.source for p in own))
        for name in names:
            part = [p for p in own if (p.held_out if by_hardware else p.source) == name]
            held = {"nothing fitted": "nothing is fitted"}.get(part[0].held_out, "its models, one at a time")
            if part[0].held_out == name:
                held = "this hardware" if by_hardware else "this source"
            lines.append(_line(quantity, name, held, score(part)))
        median, p90 = GOALS.get(quantity, (None, None))
        goal = "" if median is None else f" (goal: median {median:.1%}" + (f", p90 {p90:.0%})" if p90 else ")")
        lines.append(_line(f"**{quantity}**", f"**all**{goal}", "", score(own)))
    taus = sweep_taus(points_with_speed(points))
    mean = sum(taus.values()) / len(taus) if taus else float("nan")
    below = sum(tau < 0.8 for tau in taus.values())
    middle = sorted(taus.values())[len(taus) // 2] if taus else math.nan
    lines += [
        "",
        f"Kendall's tau within {len(taus)} sweeps of one model on one hardware: mean {mean:.2f}, median {middle:.2f}; "
        f"below 0.8 in {below}.",
    ]
    lines += ["", "| sweep | n | tau |", "|---|---|---|"]
    counts = {name: sum(p.sweep == name for p in points if p.quantity == TIME) for name in taus}
    lines += [
        f"| {name} | {counts[name]} | {tau:.2f} |" for name, tau in sorted(taus.items(), key=lambda each: each[1])
    ]
    return "\n".join(lines)


def page(points: Sequence[Point]) -> str:
    """benchmarks/accuracy.md: what is scored, how, and the table."""
    return f"""# Accuracy of the training simulator

Written by `elasmo simulate validate --out benchmarks/accuracy.md` ({date.today().isoformat()}, Python
{platform.python_version()}, numpy {numpy.__version__}). Measured values are published ones, from the tables in
`platform/elasmo/simulate/tables/` that cite their sources; predictions are of the model in `docs/simulate.md`.

Step time is compared as time or tokens/s, never as MFU, since sources count FLOPs differently. Every row is predicted
with constants that were fitted **without its source**; where only one source has some hardware, without that hardware
type, and the line says so. Rows that were not read in their source are left out. `bias` is the median of predicted /
measured - 1. T01b is the software of T01 before its scatter-gather and interleaving; T07's own releases differ by up to
1.7x on one configuration, which no model of hardware can follow. T01, T01b and T03 ran on the same cluster.

{report(points)}
"""


def points_with_speed(points: Iterable[Point]) -> list[Point]:
    """Of each row of a sweep one point: that whose source was left out."""
    return [replace(point) for point in points if point.quantity == TIME]


def _line(quantity: str, name: str, held: str, own: Score) -> str:
    return (
        f"| {quantity} | {name} | {held} | {own.n} | {own.median:.1%} | {own.p90:.1%} | {own.worst:.1%} | "
        f"{own.bias:+.1%} |"
    )


def validate(folder: Path | None = None, fitted: tuple[Calibration, Slopes, list] | None = None) -> list[Point]:
    """All points of the training model, from a folder of tables or from those that ship; `fitted` saves the fit."""
    rows = tables_in(folder)
    return [
        *time_points(measured_steps(rows), fitted),
        *memory_points(rows),
        *state_points(),
        *product_points(),
    ]


__all__ = ["Point", "default_calibration", "kendall_tau", "read_row", "report", "validate"]
