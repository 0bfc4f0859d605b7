"""Plans for people and for machines: a table, an explanation in lines, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.explain import explain
from elasmo.simulate.flops import FORMULA
from elasmo.simulate.model import Model
from elasmo.simulate.search import Search
from elasmo.simulate.training import Step


def _known(value: float | None, text: str) -> str:
    return "unknown" if value is None else text.format(value)


def plans_table(model: Model, cluster: Cluster, found: Search) -> Table:
    """The best plans, one a row. Every number in it is simulated."""
    first = found.steps[0].plan
    table = Table(
        title=f"{model.name or 'model'} ({model.parameters / 1e9:.1f} B parameters) on {cluster}, simulated: "
        f"{first.global_batch} sequences of {first.seq} tokens, {first.dtype}",
        caption=f"{found.tried} legal layouts, {found.unfit} of them do not fit. MFU: {FORMULA}.",
    )
    for name in ("layout", "recompute", "step", "tokens/s each", "MFU", "memory", "W each", "J/token", "$/M tokens"):
        table.add_column(name, justify="left" if name in ("layout", "recompute") else "right")
    for step in found.steps:
        plan = step.plan
        table.add_row(
            str(plan.having(recompute=frozenset())),
            "+".join(sorted(plan.recompute)) or "none", f"{step.seconds:.2f} s",
            f"{step.tokens_per_s_each:,.0f}", f"{step.mfu:.1%}", f"{step.memory.total / GIB:.1f} GiB",
            _known(step.power_w, "{:.0f}"), _known(step.joules_per_token, "{:.3g}"),
            _known(step.usd_per_mtoken, "{:.3g}"),
        )  # fmt: skip
    return table


def front_table(model: Model, cluster: Cluster, steps: Sequence[Step]) -> Table:
    """Plans that no other beats in time, price and energy at once. Every number in it is simulated."""
    table = Table(
        title=f"{model.name or 'model'} on {cluster.groups[0].chip.name}, simulated: the front of time, price, energy",
        caption="Each row is better than every other plan in at least one of the three.",
    )
    for name in ("accelerators", "layout", "step", "$/M tokens", "J/token", "MFU", "W each"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    for step in steps:
        table.add_row(
            f"{step.plan.world:,}", str(step.plan), f"{step.seconds:.2f} s", _known(step.usd_per_mtoken, "{:.4g}"),
            _known(step.joules_per_token, "{:.4g}"), f"{step.mfu:.1%}", _known(step.power_w, "{:.0f}"),
        )  # fmt: skip
    return table


def scaling_table(model: Model, cluster: Cluster, curve: list[tuple[int, Step | None]]) -> Table:
    """The best plan for each number of accelerators. Every number in it is simulated."""
    table = Table(title=f"{model.name or 'model'} on {cluster.groups[0].chip.name}, simulated, the same global batch")
    for name in ("accelerators", "layout", "step", "tokens/s", "of linear", "MFU", "J/token", "$/M tokens"):
        table.add_column(name, justify="left" if name == "layout" else "right")
    base: float | None = None
    for count, step in curve:
        if step is None:
            table.add_row(f"{count:,}", "does not fit", "", "", "", "", "", "")
            continue
        base = base or step.tokens_per_s_each
        table.add_row(
            f"{count:,}", str(step.plan), f"{step.seconds:.2f} s", f"{step.tokens_per_s:,.0f}",
            f"{step.tokens_per_s_each / base:.1%}", f"{step.mfu:.1%}", _known(step.joules_per_token, "{:.3g}"),
            _known(step.usd_per_mtoken, "{:.3g}"),
        )  # fmt: skip
    return table


def explanation_lines(model: Model, cluster: Cluster, step: Step) -> list[str]:
    """What binds a plan, and the best changes."""
    made = explain(model, step, cluster)
    lines = [f"What binds {step.plan}:"]
    lines += [f"  {name}: {share:.0%} of the step" for name, share in made.binds.items() if share >= 0.005]
    lines.append(f"  memory: {made.memory_free / GIB:.1f} GiB of a rank are free")
    lines.append("Changes of the plan, time saved:")
    lines += [f"  {change.what}: {change.saves:+.1%}" for change in made.plan_changes[:5]] or ["  none fits"]
    lines.append("Changes of the hardware, time saved:")
    lines += [f"  {change.what}: {change.saves:+.1%}" for change in made.hardware_changes]
    return lines


def step_json(step: Step) -> dict[str, Any]:
    """A step as plain data."""
    plan = {name: getattr(step.plan, name) for name in step.plan.__dataclass_fields__}
    plan["recompute"] = sorted(step.plan.recompute)
    return {
        "plan": plan, "simulated": True, "seconds": step.seconds, "breakdown_s": step.breakdown,
        "memory_bytes": step.memory.as_dict(), "tokens_per_s": step.tokens_per_s,
        "tokens_per_s_each": step.tokens_per_s_each, "mfu": step.mfu, "hfu": step.hfu, "power_w": step.power_w,
        "joules_per_token": step.joules_per_token, "usd_per_mtoken": step.usd_per_mtoken,
    }  # fmt: skip


def scaling_json(model: Model, curve: Sequence[tuple[int, Step | None]], front: Sequence[Step]) -> dict[str, Any]:
    """A scaling curve and the plans that none beats, as plain data."""
    points = [{"accelerators": count, "step": None if step is None else step_json(step)} for count, step in curve]
    return {"model": model.name, "scaling": points, "front": [step_json(step) for step in front]}


def plans_json(model: Model, cluster: Cluster, found: Search, explained: bool) -> dict[str, Any]:
    """A search as plain data."""
    made: dict[str, Any] = {
        "model": model.name, "parameters": model.parameters, "active_parameters": model.active_parameters,
        "cluster": str(cluster), "mfu_formula": FORMULA, "tried": found.tried, "unfit": found.unfit,
        "plans": [step_json(step) for step in found.steps],
        "front": [step_json(step) for step in found.front],
    }  # fmt: skip
    if explained:
        why = explain(model, found.steps[0], cluster)
        made["explanation"] = {
            "binds": why.binds, "memory_free_bytes": why.memory_free,
            "plan_changes": [[change.what, change.saves] for change in why.plan_changes],
            "hardware_changes": [[change.what, change.saves] for change in why.hardware_changes],
        }  # fmt: skip
    return made
