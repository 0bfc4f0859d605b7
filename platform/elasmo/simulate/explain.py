"""What binds a plan, and what the next-best change would buy: one field of the plan or one property of the hardware."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from elasmo.simulate.cluster import Cluster, Group
from elasmo.simulate.memory import training_memory
from elasmo.simulate.model import Model
from elasmo.simulate.plan import Plan, refusals
from elasmo.simulate.training import Step, fits, simulate_step

BINDS = {
    "compute": ("matmul", "attention"),
    "memory bandwidth": ("pointwise", "optimizer"),
    "link": ("tp", "cp", "ep", "fsdp", "gradients"),
    "bubble": ("bubble",),
    "host": ("host", "launch"),
    "data": ("data stall",),
    "imbalance": ("straggling",),
}
"""What seconds of a step are bound by."""


@dataclass(frozen=True)
class Change:
    """A change and the relative time that it saves; negative: it costs."""

    what: str
    saves: float


@dataclass(frozen=True)
class Explanation:
    """Shares of the step by what binds them, the largest first; changes, the best first."""

    binds: dict[str, float]
    plan_changes: tuple[Change, ...]
    hardware_changes: tuple[Change, ...]
    memory_free: float


def explain(model: Model, step: Step, cluster: Cluster) -> Explanation:
    """Why a step takes what it takes, and what would make it shorter."""
    shares = {
        name: sum(step.breakdown.get(part, 0.0) for part in parts) / step.seconds for name, parts in BINDS.items()
    }
    ordered = dict(sorted(((n, s) for n, s in shares.items() if s > 0), key=lambda each: -each[1]))
    chip = min((group.chip for group in cluster.groups), key=lambda each: each.memory)
    changes = []
    for what, plan in neighbours(step.plan):
        if refusals(plan, model, cluster.count) or not fits(training_memory(model, plan), chip):
            continue
        changes.append(Change(what, 1 - simulate_step(model, plan, cluster).seconds / step.seconds))
    better = [
        Change(what, 1 - simulate_step(model, step.plan, other).seconds / step.seconds)
        for what, other in upgrades(cluster)
    ]
    key = lambda change: -change.saves  # noqa: E731
    return Explanation(
        ordered, tuple(sorted(changes, key=key)), tuple(sorted(better, key=key)), chip.memory - step.memory.total
    )


def neighbours(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans that differ in one decision."""
    for name, other in (("tp", "dp"), ("pp", "dp"), ("cp", "dp"), ("tp", "pp"), ("cp", "tp")):
        a, b = getattr(plan, name), getattr(plan, other)
        for change in ({name: 2 * a, other: b // 2}, {name: a // 2, other: 2 * b}):
            if min(change.values()) >= 1 and a * b == change[name] * change[other]:
                more = {"chunks": 1, "schedule": "1f1b"} if "pp" in change else {}
                made = plan.having(**change, **more)
                yield f"{name}={change[name]}, {other}={change[other]}", made.having(sequence_parallel=made.tp > 1)
    for size in (plan.micro_batch * 2, plan.micro_batch // 2):
        if size and plan.global_batch % (plan.dp * size) == 0:
            yield f"micro_batch={size}", plan.having(micro_batch=size)
    if plan.pp == 1:
        stage = 1 if plan.zero == 3 else 3
        yield f"zero={stage}", plan.having(zero=stage)
    else:
        yield "schedule=zero-bubble", plan.having(schedule="zero-bubble", chunks=1)
    for size in (plan.ep * 2, plan.ep // 2):
        if size and plan.ep > 1:
            yield f"ep={size}", plan.having(ep=size)
    if plan.ep > 1 and not plan.overlap_ep:
        yield "experts' exchange beside compute", plan.having(overlap_ep=True)
    if plan.recompute:
        yield "recompute nothing", plan.having(recompute=frozenset())


def upgrades(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """The cluster with one property doubled."""

    def each(change: object) -> Cluster:
        return Cluster(tuple(change(group) for group in cluster.groups))  # type: ignore[operator]

    def chip(group: Group, **changes: object) -> Group:
        return replace(group, chip=replace(group.chip, **changes))  # type: ignore[arg-type]

    yield "twice the network", each(lambda g: replace(g, out=replace(g.out, bandwidth=2 * g.out.bandwidth)))
    yield "twice the scale-up links", each(lambda g: replace(g, up=replace(g.up, bandwidth=2 * g.up.bandwidth)))
    yield "twice the memory bandwidth", each(lambda g: chip(g, memory_bandwidth=2 * g.chip.bandwidth))
    yield "twice the peak", each(lambda g: chip(g, peaks={kind: 2 * rate for kind, rate in g.chip.peaks.items()}))
