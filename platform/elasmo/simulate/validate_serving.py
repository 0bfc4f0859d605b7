"""How far the serving model is off, on rows that its constants have not seen.

A fold leaves out one source, task, model shape or hardware type, fits every constant anew on the rest, and predicts
what was left out; the way is named with each figure, since they answer different questions. Where a source is the only
one of its kind of engine, leaving it out leaves that kind's constants to be guessed from the others'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.calibration import default_calibration
from elasmo.simulate.deployment import Deployment
from elasmo.simulate.fit_operators import errors, fit_products, timed_products
from elasmo.simulate.fit_serving import cache_share, fit, start
from elasmo.simulate.published import read_table, scored
from elasmo.simulate.score import Point, score, sweep_taus
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_constants import ServingConstants, default_constants
from elasmo.simulate.serving_panel import Panel
from elasmo.simulate.serving_rows import QUANTITIES, Case, published_cases

NOTHING = "nothing (fitted on the same rows)"
GOALS = {"energy per token": 0.12, "KV cache capacity": 0.08, "power": None}
GOAL = 0.10


def shape_of(case: Case) -> str:
    """A model's decoder by its numbers: names that share a shape are left out together."""
    model = case.deployment.model
    return f"{model.depth}x{model.hidden}x{model.vocab}"


def table_of(case: Case) -> str:
    """S02, S05 or S07."""
    return case.source.split()[0]


def source_of(case: Case) -> str:
    """Who measured: one engine's profile, one vendor's page, one leaderboard."""
    return "S07 ML.ENERGY" if table_of(case) == "S07" else case.source


WAYS: dict[str, Callable[[Case], str]] = {
    "one source": source_of,
    "one task": lambda case: case.source if table_of(case) == "S07" else "",
    "one model": shape_of,
    "one hardware type": lambda case: case.hw if table_of(case) != "S02" else "",
}
"""Groups that are left out; "" is never left out and not scored."""


def panel_points(cases: Sequence[Case], constants: ServingConstants, held_out: str) -> list[Point]:
    """Every measured number of the cases beside its prediction."""
    panel = Panel(cases)
    predicted = panel.predicted(constants)
    return [
        Point(
            QUANTITIES[name], f"{source_of(panel.cases[number])}, {panel.cases[number].hw}", held_out,
            float(value), float(measured), panel.cases[number].sweep,
        )
        for (number, name), value, measured in zip(panel.wanted, predicted, panel.measured, strict=True)
    ]  # fmt: skip


def left_out_points(cases: Sequence[Case], way: str, guess: ServingConstants) -> list[Point]:
    """Predictions of every case by constants that were fitted without its group."""
    group_of, found = WAYS[way], []
    for group in sorted({group_of(case) for case in cases} - {""}):
        held = [case for case in cases if group_of(case) == group]
        rest = [case for case in cases if group_of(case) != group]
        found += panel_points(held, fit(rest, start(), guess), way)
    return found


def cache_points() -> list[Point]:
    """Published capacities of a KV cache, with the one constant fitted on the other model."""
    chip, found = accelerator("A100-SXM-80GB"), []
    rows = list(filter(scored, read_table("S02b_distserve_kv_capacity_a100")))
    shares = {name: cache_share(leave_out=name) for name in sorted({row["model"] for row in rows})}
    for row in rows:
        cut = Deployment(served_model(row["model"]).model, chip, "native")
        ranks = int(row["tp"]) * int(row["pp"])
        room = chip.memory * shares[row["model"]] * ranks - cut.weight_bytes
        found.append(
            Point("KV cache capacity", f"S02b DistServe, {chip.name}", "one model",
                  room / cut.cache_bytes_per_token, float(row["max_num_tokens"]))
        )  # fmt: skip
    return found


def operator_points() -> list[Point]:
    """Times of a layer's four products, with constants fitted on the other hardware types; their mean stands in."""
    rows = timed_products()
    found = []
    for hw in sorted({row.hw for row in rows}):
        fitted = fit_products(default_calibration(), [row for row in rows if row.hw != hw][::4])
        own = accelerator(hw).generation
        kept = {accelerator(row.hw).generation for row in rows if row.hw != hw}
        tables = {}
        for name in ("matmul", "inner", "memory", "launch_s"):
            table = dict(getattr(fitted, name))
            if own not in kept:
                ends = ".bf16" if name == "matmul" else ""
                seen = [table[f"{generation}{ends}"] for generation in sorted(kept)]
                table[f"{own}{ends}"] = sum(seen) / len(seen)
            tables[name] = table
        held = [row for row in rows if row.hw == hw]
        off = errors(fitted.having(**tables), held)
        found += [
            Point("operator time", f"S03 Vidur, {accelerator(hw).name}", "one hardware type",
                  row.seconds * math.exp(each), row.seconds)
            for row, each in zip(held, off, strict=True)
        ]  # fmt: skip
    return found


def validate_serving(ways: Iterable[str] = tuple(WAYS)) -> list[Point]:
    """All points of the serving half."""
    guess = default_constants()
    cases = published_cases(guess)
    found = panel_points(cases, guess, NOTHING)
    for way in ways:
        found += left_out_points(cases, way, guess)
    return [*found, *cache_points(), *operator_points()]


def serving_section(points: Sequence[Point]) -> str:
    """The part of benchmarks/accuracy.md that scores serving."""
    lines = [
        "## Serving",
        "",
        "Steps of engines (S02), throughput and time to first token of static batches (S05), inter-token latency,",
        "throughput, power and energy of steady loads (S07), KV capacity (S02b), operators (S03). **Left out** is what",
        "the constants were fitted without; each source but S03 and S02b is the only one of its kind of engine, so",
        "leaving it out leaves the constants of that kind to be guessed. Prompt lengths of S07 are not published and",
        "are assumed by task. Several B200 rows of S07 have steps some 25 ms longer than the same model at the same",
        "batch has under another task: a host that stalls, which nothing in the row foretells.",
        "",
        "| left out | source | quantity | n | median | p90 | worst | bias | mean Kendall tau | goal | met |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for held_out in dict.fromkeys(point.held_out for point in points):
        chosen = [point for point in points if point.held_out == held_out]
        for quantity in sorted({point.quantity for point in chosen}):
            own = [point for point in chosen if point.quantity == quantity]
            tables = sorted({point.source.split(",")[0] for point in own})
            for table in tables:
                part = [point for point in own if point.source.split(",")[0] == table]
                lines.append(_line(held_out, f"**{table}**", quantity, part, GOALS.get(quantity, GOAL)))
                chips = sorted({point.source for point in part})
                if len(chips) > 1:
                    lines += [
                        _line(held_out, chip, quantity, [point for point in part if point.source == chip], None)
                        for chip in chips
                    ]
    return "\n".join(lines) + "\n"


def _line(held_out: str, source: str, quantity: str, points: Sequence[Point], goal: float | None) -> str:
    own, taus = score(points), sweep_taus(points)
    tau = f"{sum(taus.values()) / len(taus):.2f}" if taus else ""
    wanted = "" if goal is None else f"{goal:.0%}"
    met = "" if goal is None else "yes" if own.median <= goal else "**no**"
    return (
        f"| {held_out} | {source} | {quantity} | {own.n} | {own.median:.1%} | {own.p90:.1%} | {own.worst:.0%} | "
        f"{own.bias:+.1%} | {tau} | {wanted} | {met} |"
    )
