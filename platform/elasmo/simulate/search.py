"""The best training plans of a model on a cluster: every legal layout that fits in memory, ranked by a goal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.cluster import Cluster
from elasmo.simulate.memory import training_memory
from elasmo.simulate.model import Model
from elasmo.simulate.plan import Plan, PlanError, Schedule, refusals
from elasmo.simulate.training import USABLE, Step, fits, simulate_step

Goal = Literal["time", "price", "energy"]
KEEP: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"attention", "pointwise", "experts_activation"}),
    frozenset({"attention", "pointwise", "experts_activation", "latents"}),
    frozenset({"full"}),
)
"""What may be recomputed, from nothing to all; a plan takes the least that fits."""


@dataclass(frozen=True)
class Job:
    """What is trained, besides the model.

    Attributes:
        fixed: fields of the plan that the search must leave as they are, such as tp=8.
    """

    seq: int
    global_batch: int
    dtype: str = "bf16"
    fixed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        steps: the best plans, best first.
        fitting: all that fit. front: those of them that no other beats in time, price and energy, fastest first.
        tried: legal layouts. unfit: those of them that no recompute makes fit.
    """

    steps: tuple[Step, ...]
    tried: int
    unfit: int
    fitting: tuple[Step, ...] = ()

    @cached_property
    def front(self) -> tuple[Step, ...]:
        return tuple(pareto(self.fitting))


def pareto(steps: Iterable[Step]) -> list[Step]:
    """Steps that none beats: no other is at least as good in seconds, dollars and joules a token, and better in one.

    What is not known of any step (a price, a power) is not compared.
    """
    found: list[tuple[tuple[float, ...], Step]] = []
    for step in sorted(steps, key=_objectives):
        own = _objectives(step)
        # Sorted, no later step can beat an earlier one, only be equal to it.
        if not any(all(a <= b for a, b in zip(other, own, strict=True)) for other, _ in found):
            found.append((own, step))
    return [step for _, step in found]


def _objectives(step: Step) -> tuple[float, ...]:
    """Seconds, then dollars and joules a token; an unknown one is equal for all."""
    return step.seconds, step.usd_per_mtoken or 0.0, step.joules_per_token or 0.0


class UnfitError(ValueError):
    """No plan fits in memory: by how much not, and what would."""


def sizes(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... up to `most`: what layouts are cut into."""
    return sorted({base << power for base in (1, 3) for power in range(20) if base << power <= most})


def layouts(model: Model, cluster: Cluster, job: Job) -> Iterator[Plan]:
    """Legal layouts of whole domains, with recompute left open."""
    count, wanted = cluster.count, dict(job.fixed)
    domain = min(group.up.domain for group in cluster.groups)
    experts = next((layer.experts.count for layer in model.layers if layer.experts is not None), 1)
    heads = model.layers[0].attention.heads

    def options(name: str, values: Sequence[int]) -> Sequence[int]:
        return [wanted[name]] if name in wanted else values

    tps = options(
        "tp", [size for size in sizes(min(domain, heads, 64)) if heads % size == 0 and size & (size - 1) == 0]
    )
    pps = options("pp", [size for size in sizes(model.depth) if count % size == 0])
    cps = options("cp", [size for size in (1, 2, 4, 8, 16, 32) if job.seq // size >= 2048 or size == 1])
    for tp, pp, cp in product(tps, pps, cps):
        if count % (tp * pp * cp):
            continue
        dp = count // (tp * pp * cp)
        if dp > job.global_batch or ("dp" in wanted and wanted["dp"] != dp):
            continue
        shared = dp * cp * tp
        eps = options(
            "ep", [size for size in sizes(min(experts, shared)) if experts % size == 0 and shared % size == 0]
        )
        micro = [size for size in (1, 2, 4, 8) if job.global_batch % (dp * size) == 0]
        for ep, size in product(eps, options("micro_batch", micro)):
            for zero in options("zero", (1, 3) if pp == 1 and dp * cp > 1 else (1,)):
                for chunks in options("chunks", _chunks(model, pp, job.global_batch // (dp * size))):
                    schedule: Schedule = "interleaved" if chunks > 1 else "1f1b"
                    plan = Plan(
                        seq=job.seq, global_batch=job.global_batch, micro_batch=size, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep,
                        zero=zero, chunks=chunks, schedule=schedule, sequence_parallel=tp > 1, dtype=job.dtype,
                        attention_version=3, overlap_tp=True,
                    )  # fmt: skip
                    if not refusals(plan, model, count):
                        yield plan


def _chunks(model: Model, pp: int, micro_batches: int) -> list[int]:
    if pp == 1:
        return [1]
    even = [size for size in (2, 3, 4, 5, 6, 8, 10) if pp * size <= model.depth and -model.depth % (pp * size) <= 2]
    return [1, *(even[-2:] if micro_batches % pp == 0 else [])]


def search(
    model: Model, cluster: Cluster, job: Job, goal: Goal = "time", top: int = 5, suggest: bool = True
) -> Search:  # fmt: skip
    """The `top` plans by time, dollars or joules a token. For equal clusters, price and time rank alike.

    Args:
        suggest: where nothing fits, look for a cluster on which something would.

    Raises:
        PlanError: no layout is legal; gives the reason and the nearest legal one.
        UnfitError: none fits.
        HardwareError: a peak or a memory that is not known.
    """
    least = min((group.chip for group in cluster.groups), key=lambda chip: chip.memory)
    found: list[Step] = []
    tried, unfit = 0, 0
    tightest: tuple[float, Plan] | None = None
    for plan in layouts(model, cluster, job):
        tried += 1
        for keep in KEEP:
            kept = plan.having(recompute=keep)
            memory = training_memory(model, kept)
            if fits(memory, least):
                found.append(simulate_step(model, kept, cluster))
                break
        else:
            unfit += 1
            if tightest is None or memory.total < tightest[0]:
                tightest = memory.total, kept
    if tried == 0:
        raise PlanError(_nearest(model, cluster, job))
    if tightest is not None and not found:
        raise UnfitError(_unfit(model, cluster, job, tightest, USABLE * least.memory, suggest))
    if goal == "energy" and any(step.joules_per_token is None for step in found):
        raise PlanError("goal=energy needs the power of every accelerator; give power_w in the hardware YAML.")
    key = {
        "time": lambda step: step.seconds,
        "price": lambda step: step.usd_per_mtoken if step.usd_per_mtoken is not None else step.seconds,
        "energy": lambda step: step.joules_per_token,
    }[goal]
    return Search(tuple(sorted(found, key=key)[:top]), tried, unfit, tuple(found))


def searches(
    model: Model, cluster: Cluster, job: Job, most: int, goal: Goal = "time", top: int = 1
) -> list[tuple[int, Search | None]]:  # fmt: skip
    """A search on 1, 2, 4, ... times the cluster up to `most` accelerators; None where the model does not fit.

    The global batch is the same everywhere, so that the runs are the same run: the job's, or `most` where it is less.

    Raises:
        HardwareError: a mixed fleet, which has no multiples.
    """
    same = Job(job.seq, max(job.global_batch, most), job.dtype, job.fixed)
    found: list[tuple[int, Search | None]] = []
    count = cluster.count
    while count <= most:
        try:
            found.append((count, search(model, cluster.resized(count), same, goal, top, suggest=False)))
        except UnfitError:
            found.append((count, None))
        count *= 2
    return found


def curve_of(found: Iterable[tuple[int, Search | None]]) -> list[tuple[int, Step | None]]:
    """The best plan for each number of accelerators."""
    return [(count, None if each is None else each.steps[0]) for count, each in found]


def front_of(found: Iterable[tuple[int, Search | None]]) -> list[Step]:
    """The plans over all numbers of accelerators that no other beats in time, price and energy at once."""
    return pareto(step for _, each in found if each is not None for step in each.front)


def _nearest(model: Model, cluster: Cluster, job: Job) -> str:
    """Why no layout is legal, and the legal one that changes least of what was fixed."""
    fixed = dict(job.fixed)
    cut = fixed.get("tp", 1) * fixed.get("pp", 1) * fixed.get("cp", 1)
    dp = fixed.get("dp", max(1, cluster.count // cut))
    values = {**fixed, "dp": dp}
    schedule: Schedule = "interleaved" if fixed.get("chunks", 1) > 1 else "1f1b"
    asked = Plan(seq=job.seq, global_batch=job.global_batch, dtype=job.dtype, schedule=schedule).having(**values)
    reasons = refusals(asked, model, cluster.count) or ["no layout suits the batch"]
    free = list(layouts(model, cluster, Job(job.seq, job.global_batch, job.dtype)))
    text = "; ".join(reasons) + "."
    if not free:
        return f"{text} No layout of {cluster} is legal for global_batch={job.global_batch}."
    near = min(free, key=lambda plan: sum(abs(getattr(plan, name) - number) for name, number in fixed.items()))
    return f"{text} The nearest legal layout is {near}."


def _unfit(
    model: Model, cluster: Cluster, job: Job, tightest: tuple[float, Plan], usable: float, suggest: bool
) -> str:  # fmt: skip
    """By how much nothing fits, and the smallest cluster of the same kind on which something does."""
    over, plan = tightest
    text = (
        f"{model.name or 'The model'} does not fit on {cluster}: the tightest layout, {plan}, needs "
        f"{over / GIB:.1f} GiB a rank, {(over - usable) / GIB:.1f} GiB more than the {usable / GIB:.1f} GiB usable."
    )
    if len(cluster.groups) > 1 or not suggest:
        return text
    count = cluster.count
    while count < 1 << 15:
        count *= 2
        more = cluster.resized(count)
        batch = max(job.global_batch, count)
        for each in layouts(model, more, Job(job.seq, batch, job.dtype, job.fixed)):
            if training_memory(model, each.having(recompute=KEEP[-1])).total <= usable:
                return f"{text} It would fit on {more}."
    return text


def fixed_fields(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """`["tp=8", "pp=4"]` as pairs.

    Raises:
        PlanError: not of that form, or no field of a layout.
    """
    known = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "chunks")
    found = []
    for text in texts:
        name, _, number = text.partition("=")
        if name.strip() not in known or not number.strip().isdigit():
            raise PlanError(f"fix={text} is not of the form NAME=NUMBER with one of {', '.join(known)}, such as tp=8.")
        found.append((name.strip(), int(number)))
    return tuple(found)
