"""A training step on a cluster: seconds and where they go, memory, rates, energy and money.

step = pipeline of micro-batches (layers, embedding, loss, recompute, what communication shows)
     + gradients and weights that are not hidden + optimizer + host
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from elasmo.simulate.accelerator import Accelerator
from elasmo.simulate.calibration import Calibration, default_calibration
from elasmo.simulate.cluster import Cluster, Group
from elasmo.simulate.collectives import Links, Span
from elasmo.simulate.cost import ZERO, Cost
from elasmo.simulate.flops import attention_flops, step_flops
from elasmo.simulate.layer_cost import LayerCost, Rank, layer_cost
from elasmo.simulate.memory import Memory, rank_parameters, training_memory
from elasmo.simulate.model import Layer, Model, Tower
from elasmo.simulate.operators import Operators
from elasmo.simulate.plan import Plan, PlanError, refusals
from elasmo.simulate.power import power_w
from elasmo.simulate.schedule import Timeline, run, step_seconds


@dataclass(frozen=True)
class Step:
    """What a step takes. Seconds are of the whole step on the slowest rank.

    Attributes:
        breakdown: seconds by what they go to; they add up to `seconds`.
        mfu: model FLOPs (formula: `flops.FORMULA`) over the peak of the products' dtype. hfu: with what is recomputed.
        power_w: of an accelerator, mean. None where its design power is not known.
    """

    plan: Plan
    seconds: float
    breakdown: dict[str, float]
    memory: Memory
    tokens_per_s: float
    tokens_per_s_each: float
    mfu: float
    hfu: float
    power_w: float | None
    joules_per_token: float | None
    usd_per_mtoken: float | None
    timeline: Timeline | None = None


def simulate_step(
    model: Model,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    events: bool = False,
    data_s: float = 0.0,
) -> Step:
    """Simulates a step.

    Args:
        events: play the pipeline event by event and keep its timeline; else in closed form.
        data_s: seconds that the data pipeline needs for a step's batch; what compute does not hide is a stall.

    Raises:
        PlanError: a plan that cannot be.
        HardwareError: a peak or a memory that is not known.
    """
    reasons = refusals(plan, model, cluster.count)
    if reasons:
        raise PlanError("; ".join(reasons) + ".")
    parts = [_on_group(model, plan, each, calibration or default_calibration(), events) for each in cluster.groups]
    spent, timeline = max(parts, key=lambda part: sum(part[0].values()))
    busy = sum(spent.values())
    if data_s > busy:
        spent = {**spent, "data stall": data_s - busy}
    seconds = sum(spent.values())
    tokens = plan.global_batch * plan.seq
    work = step_flops(model, plan.seq, plan.global_batch, document=plan.document)
    peak = sum(each.count * each.chip.peak(plan.dtype) for each in cluster.groups)
    forwards = 3 + (1 if plan.full_recompute else 0.5 if "half" in plan.recompute else 0)
    done = work * forwards / 3
    if "attention" in plan.recompute:
        done += attention_flops(model, plan.document or plan.seq) * tokens
    scores = 0.0 if plan.fused_attention else spent.get("attention", 0.0)  # unfused, they pass through memory
    watts = _power(cluster, spent, seconds, done, peak, scores)
    price = cluster.price_usd_h
    return Step(
        plan=plan,
        seconds=seconds,
        breakdown=spent,
        memory=training_memory(model, plan),
        tokens_per_s=tokens / seconds,
        tokens_per_s_each=tokens / seconds / cluster.count,
        mfu=work / seconds / peak,
        hfu=done / seconds / peak,
        power_w=watts,
        joules_per_token=None if watts is None else watts * cluster.count * seconds / tokens,
        usd_per_mtoken=None if price is None else price / 3600 * seconds / tokens * 1e6,
        timeline=timeline,
    )


def _power(
    cluster: Cluster, spent: dict[str, float], seconds: float, work: float, peak: float, scores: float
) -> float | None:
    linked = sum(spent.get(name, 0.0) for name in ("tp", "cp", "ep", "fsdp", "gradients", "pipeline send"))
    streamed = spent.get("pointwise", 0.0) + spent.get("optimizer", 0.0) + scores
    watts = [
        power_w(each.chip, min(1.0, work / seconds / peak / 0.75), streamed / seconds, linked / seconds)
        for each in cluster.groups
    ]
    if any(each is None for each in watts):
        return None
    return sum((w or 0.0) * each.count for w, each in zip(watts, cluster.groups, strict=True)) / cluster.count


@lru_cache(maxsize=64)
def make_rank(group: Group, calibration: Calibration) -> Rank:
    """Operators and links of a group; the same object for the same constants, so that costs are found again."""
    return Rank(Operators(group.chip, calibration, lasting=True), Links(group, calibration))


@dataclass(frozen=True)
class Stage:
    """A virtual pipeline stage: passes of one micro-batch."""

    forward: Cost
    backward: Cost
    fsdp: float
    host: float

    @property
    def seconds(self) -> tuple[float, float]:
        share = self.forward.total / max(1e-12, self.forward.total + self.backward.total)
        more = self.fsdp + self.host
        return self.forward.total + more * share, self.backward.total + more * (1 - share)


def stages(model: Model, plan: Plan, rank: Rank) -> list[Stage]:
    """Every virtual stage of the pipeline, for a micro-batch."""
    parts = plan.pp * plan.chunks
    cuts = [round(model.depth * number / parts) for number in range(parts + 1)]
    return [_stage(model, plan, rank, first, end, parts) for first, end in pairwise(cuts)]


def _stage(model: Model, plan: Plan, rank: Rank, first: int, end: int, parts: int) -> Stage:
    forward, backward, fsdp, host = ZERO, ZERO, 0.0, 0.0
    count: dict[Layer, int] = {}
    for layer in model.layers[first:end]:
        count[layer] = count.get(layer, 0) + 1
    neutral = plan.having(global_batch=1, micro_batch=1, dp=1, pp=1, chunks=1, zero=0, schedule="1f1b")
    for layer, times in count.items():
        cost = layer_cost(rank, model.hidden, layer, neutral, plan.tokens, plan.attended, True)
        back = cost.backward if not model.frozen_decoder else cost.backward.times(0.5)
        forward = forward + cost.forward.times(times)
        backward = backward + (back + cost.again).times(times)
        known = rank.operators.calibration
        launch = known.layer_host_s if layer.experts is None else known.expert_host_s
        busy = (cost.forward + back + cost.again).total
        host += times * max(0.0, launch * (4 / 3 if plan.full_recompute else 1) - busy)
        if plan.gathers:
            fsdp += times * _sharded(rank, plan, layer.parameters(model.hidden), layer, model.hidden, cost)
    ops, h, t = rank.operators, model.hidden, plan.tokens
    if first == 0:
        towers = _towers(model, plan, rank)
        look = ops.embedding(t, h)
        forward = forward + towers[0] + Cost(pointwise=look)
        backward = backward + towers[1] + Cost(pointwise=2 * look)
    if end == model.depth:
        kind = plan.plain_dtype
        columns = max(1, model.vocab // plan.tp)
        head = ops.gemm(t, columns, h, kind)
        gradient = ops.gemm(t, h, columns, kind) + ops.gemm(h, columns, t, kind)
        # Logits to float32, maximum, exponentials, sum, then the gradient: passes over them.
        loss = ops.stream(t * columns * (14.0 if plan.compiled else 30.0), 6)
        forward = forward + Cost(matmul=head, pointwise=0.6 * loss)
        backward = backward + Cost(matmul=gradient, pointwise=0.4 * loss)
        if plan.gathers:
            fsdp += 0.1 * rank.links.all_gather(Span(plan.dp * plan.cp, plan.tp), plan.width * h * columns)
    if host and plan.chunks > 1:
        host += rank.operators.calibration.micro_batch_s  # nothing hides the hand-over of a chunk from a host that lags
    return Stage(forward, backward, fsdp, host)


def _sharded(rank: Rank, plan: Plan, parameters: float, layer: Layer, hidden: int, cost: LayerCost) -> float:
    """Seconds that gathering a layer's weights and scattering its gradients show beside its compute."""
    experts = layer.experts.count * layer.experts.each.parameters(hidden) if layer.experts is not None else 0
    whole = Span(shard_ranks(plan, rank), plan.tp)
    own = (parameters - experts) / plan.tp
    gather = rank.links.all_gather(whole, plan.width * own)
    scatter = rank.links.all_gather(whole, plan.gradient_bytes * own)
    if experts and plan.expert_ranks > 1:
        part = Span(plan.expert_ranks, plan.tp * plan.ep)
        gather += rank.links.all_gather(part, plan.width * experts / plan.ep)
        scatter += rank.links.all_gather(part, plan.gradient_bytes * experts / plan.ep)
    if not plan.overlap_dp:
        return 2 * gather + scatter
    hidden_s = rank.operators.calibration.of("contention", rank.operators.chip.generation)
    shown = 0.0
    for moved, computed in (
        (gather, cost.forward.compute),
        (gather + scatter, cost.backward.compute + cost.again.compute),
    ):
        shown += max(0.0, moved - computed) + hidden_s * min(moved, computed)
    return shown


def _towers(model: Model, plan: Plan, rank: Rank) -> tuple[Cost, Cost]:
    """Encoders of a micro-batch's media; the rank with most media sets the pace."""
    forward, backward = ZERO, ZERO
    plain = Plan(
        seq=1, global_batch=1, dtype=plan.dtype, tp=1, compiled=plan.compiled, recompute=plan.recompute,
        gradient_bytes=plan.gradient_bytes, zero=0, fused_attention=plan.fused_attention,
        attention_version=min(2, plan.attention_version),
    )  # fmt: skip
    for tower in model.towers:
        media = plan.micro_batch * tower.media / (plan.tp * plan.cp)
        if media <= 0 or tower.positions <= 0:
            continue
        if tower.spread and plan.dp > 1:
            # Ranks wait for each other at every layer where weights are gathered, else once a step.
            drawn = plan.micro_batch * (1 if plan.gathers else plan.micro_batches)
            media *= 1 + tower.spread / math.sqrt(max(1.0, drawn)) * math.sqrt(2 * math.log(plan.dp))
        tokens = media * tower.positions
        if tower.layers:
            cost = layer_cost(rank, tower.hidden, tower.layer, plain, tokens, float(tower.positions), False)
            forward = forward + cost.forward.times(tower.layers)
            if not tower.frozen:
                backward = backward + (cost.backward + cost.again).times(tower.layers)
        gemm = rank.operators.gemm
        made = gemm(tokens, tower.hidden, max(1, tower.input_width), plan.plain_dtype)
        out = sum(gemm(media * max(1, tower.tokens), b, a, plan.plain_dtype) for a, b in pairwise(tower.projector))
        sampled = _resampler(rank, tower, media, plan.plain_dtype)
        out += sampled
        forward = forward + Cost(matmul=made + out)
        backward = backward + Cost(matmul=(0 if tower.frozen else made) + (0 if tower.frozen_projector else 2 * out))
    return forward, backward


def _resampler(rank: Rank, tower: Tower, media: float, kind: str) -> float:
    """Forward seconds of a resampler: keys and values of every position, the rest of the latents."""
    made = tower.resampler
    if made is None:
        return 0.0
    gemm, h = rank.operators.gemm, made.hidden
    latents, seen = media * made.latents, media * (tower.positions + made.latents)
    each = gemm(seen, 2 * h, h, kind) + 2 * gemm(latents, h, h, kind) + 2 * gemm(latents, made.width, h, kind)
    return made.layers * each


def _on_group(
    model: Model, plan: Plan, group: Group, calibration: Calibration, events: bool
) -> tuple[dict[str, float], Timeline | None]:
    rank = make_rank(group, calibration)
    made = stages(model, plan, rank)
    spent: dict[str, float] = {}
    m = plan.micro_batches
    worst = max(
        range(plan.pp),
        key=lambda r: sum(sum(made[c * plan.pp + r].seconds) for c in range(plan.chunks)),
    )
    for chunk in range(plan.chunks):
        stage = made[chunk * plan.pp + worst]
        for name, value in (stage.forward + stage.backward).as_dict().items():
            spent[name] = spent.get(name, 0.0) + m * value
        spent["fsdp"] = spent.get("fsdp", 0.0) + m * stage.fsdp
        spent["launch"] = spent.get("launch", 0.0) + m * stage.host
    ideal = sum(spent.values())
    timeline = None
    if plan.pp > 1:
        size = (
            plan.tokens * model.hidden * plan.width / plan.tp
        )  # cut over tp for the way (Narayanan et al. 2021, section 4.1)
        send = rank.links.send(size, plan.tp * plan.cp * plan.dp)
        forward = [stage.seconds[0] for stage in made]
        backward = [stage.seconds[1] for stage in made]
        if events:
            split = plan.schedule == "zero-bubble"
            timeline = run(
                plan.schedule, plan.pp, plan.chunks, m,
                lambda stage, _: forward[stage],
                lambda stage, _: backward[stage] * (0.5 if split else 1.0), send,
                (lambda stage, _: backward[stage] * 0.5) if split else None,
            )  # fmt: skip
            length = timeline.end_s
        else:
            length = step_seconds(plan.schedule, plan.pp, plan.chunks, m, forward, backward, send)
        spent["bubble"] = max(0.0, length - ideal)
    spent["gradients"] = _gradients(model, plan, rank, worst, made)
    spent["optimizer"] = _optimizer(model, plan, rank)
    spent["host"] = calibration.step_s + calibration.micro_batch_s * m
    domains = plan.world / max(1, min(plan.world, group.up.domain))
    spent["straggling"] = calibration.straggle * math.log2(max(1.0, domains)) * sum(spent.values())
    return {name: value for name, value in spent.items() if value > 0}, timeline


def _gradients(model: Model, plan: Plan, rank: Rank, worst: int, made: Sequence[Stage]) -> float:
    """Seconds of reducing gradients and gathering weights that no compute hides, once a step."""
    busy = rank.operators.calibration.of("contention", rank.operators.chip.generation)
    if plan.gathers:
        return _across_domains(model, plan, rank, made, busy)
    dense, experts = rank_parameters(model, plan, worst)
    shown = 0.0
    share = model.trained_parameters / model.parameters
    # One chunk: only the last micro-batch's pass hides it. More: the other chunks' passes of a round do.
    rounds = 0.8 * max(1.0, min(plan.micro_batches, plan.pp) * (plan.chunks - 1) / plan.chunks)
    for own, span in (
        (dense, Span(plan.dp * plan.cp, plan.tp)),
        (experts, Span(plan.expert_ranks, plan.tp * plan.ep)),
    ):
        if own and span.size > 1:
            scatter = rank.links.all_gather(span, plan.gradient_bytes * own * share)
            gather = rank.links.all_gather(span, (plan.width if plan.zero else plan.gradient_bytes) * own * share)
            if not plan.overlap_dp:
                shown += scatter + gather
                continue
            hide_b = sum(made[c * plan.pp + worst].seconds[1] for c in range(plan.chunks)) * rounds
            hide_f = sum(made[c * plan.pp + worst].seconds[0] for c in range(plan.chunks)) * rounds
            for moved, hide in ((scatter, hide_b), (gather, hide_f)):
                shown += max(0.0, moved - hide) + busy * min(moved, hide)
    return shown


def shard_ranks(plan: Plan, rank: Rank) -> int:
    """Ranks over which ZeRO 3 cuts weights."""
    whole = plan.dp * plan.cp
    return whole if not plan.hybrid else min(whole, max(1, rank.links.group.up.domain // plan.tp))


def _across_domains(model: Model, plan: Plan, rank: Rank, made: Sequence[Stage], busy: float) -> float:
    """Seconds that summing a shard's gradients over the replicas of hybrid sharding shows."""
    shards = shard_ranks(plan, rank)
    replicas = plan.dp * plan.cp // shards
    if replicas <= 1:
        return 0.0
    size = plan.gradient_bytes * model.trained_parameters / plan.tp / shards
    moved = rank.links.all_reduce(Span(replicas, shards * plan.tp), size)
    if not plan.overlap_dp:
        return moved
    hide = 0.8 * sum(stage.seconds[1] for stage in made)
    return max(0.0, moved - hide) + busy * min(moved, hide)


def _optimizer(model: Model, plan: Plan, rank: Rank) -> float:
    dense, experts = rank_parameters(model, plan, 0)
    share = model.trained_parameters / model.parameters
    over = (plan.dp * plan.cp, plan.expert_ranks) if plan.zero else (1, 1)
    own = (dense / over[0] + experts / over[1]) * share
    return rank.operators.stream(own * rank.operators.calibration.optimizer_bytes, 50)


def fits(memory: Memory, chip: Accelerator, tolerance: float = 1.0) -> bool:
    """Whether a rank's bytes fit, with the share of memory that fragmentation leaves."""
    return memory.total <= tolerance * USABLE * chip.memory


USABLE = 0.97
