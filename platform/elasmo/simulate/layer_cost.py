"""Forward, backward and recomputed seconds of one decoder or encoder layer on one rank, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from elasmo.simulate.collectives import Links, Span
from elasmo.simulate.cost import ZERO, Cost
from elasmo.simulate.model import FeedForward, Layer
from elasmo.simulate.operators import Operators, pairs
from elasmo.simulate.plan import Plan

UNFUSED_FORWARD, UNFUSED_BACKWARD = 4.0, 7.5
"""Times that unfused attention moves a score: product, scaled and masked softmax, product. Dropout moves it twice more,
and a byte of mask."""
CAST = 4.0
"""Bytes that a quantised operand moves for a number: read in 16 bits, written twice in 8, as it is and transposed."""


@dataclass(frozen=True)
class LayerCost:
    """A layer's passes."""

    forward: Cost
    backward: Cost
    again: Cost


@dataclass(frozen=True, eq=False)
class Rank:
    """What a rank has to compute with: operators and links."""

    operators: Operators
    links: Links


@lru_cache(maxsize=50_000)
def layer_cost(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float, seq: float, causal: bool) -> LayerCost:
    """A layer on `tokens` tokens of sequences `seq` long; both before tp and after cp cut them, `seq` before."""
    attention = _attention_core(rank, layer, plan, tokens, seq, causal)
    projections = _projections(rank, hidden, layer, plan, tokens)
    wide = _feed_forward(rank, hidden, layer.feed_forward, plan, tokens)
    experts = _experts(rank, hidden, layer, plan, tokens)
    points = _pointwise(rank, hidden, layer, plan, tokens)
    exchange = _tensor_parallel(rank, hidden, layer, plan, tokens)
    crossed = _cross(rank, hidden, layer, plan, tokens)
    forward, backward = ZERO, ZERO
    for part in (attention, projections, wide, experts, points, exchange, crossed):
        forward, backward = forward + part[0], backward + part[1]
    if plan.full_recompute:
        return LayerCost(forward, backward, forward)
    again = ZERO
    for name, part in (
        ("attention", attention), ("projections", projections), ("feed_forward", wide), ("experts", experts),
        ("pointwise", points),
    ):  # fmt: skip
        if name in plan.recompute:
            again = again + part[0]
    if "latents" in plan.recompute and layer.attention.latent:
        again = again + projections[0].times(0.5)
    if "half" in plan.recompute:
        again = again + (projections[0] + wide[0] + experts[0]).times(0.5) + points[0]
    return LayerCost(forward, backward, again)


def _product(rank: Rank, plan: Plan, rows: float, columns: float, inner: float, count: float = 1) -> tuple[Cost, Cost]:
    """A product and its two gradients; fp8 casts its operands."""
    gemm = rank.operators.gemm
    forward = gemm(rows, columns, inner, plan.dtype, count, out_bytes=plan.width)
    data = gemm(rows, inner, columns, plan.dtype, count, out_bytes=plan.width)
    weight = gemm(inner, columns, rows, plan.dtype, count, out_bytes=2 * plan.gradient_bytes)
    cast = (0.0, 0.0)
    if plan.dtype in ("fp8", "fp4"):
        ours = rank.operators.stream
        weights = inner * columns * count
        cast = (ours(CAST * (count * rows * inner + weights), 2), ours(CAST * count * rows * columns, 1))
    return Cost(matmul=forward, pointwise=cast[0]), Cost(matmul=data + weight, pointwise=cast[1])


def _projections(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float) -> tuple[Cost, Cost]:
    forward, backward = ZERO, ZERO
    products = layer.attention.products(hidden)
    for number, (outputs, inputs) in enumerate(products):
        if number == len(products) - 1:
            inputs = max(1, inputs // plan.tp)
        elif not (layer.attention.latent and inputs == hidden):  # the compressions are the same on all tp ranks
            outputs = max(1, outputs // plan.tp)
        a, b = _product(rank, plan, tokens, outputs, inputs)
        forward, backward = forward + a, backward + b
    return forward, backward


def _feed_forward(
    rank: Rank, hidden: int, part: FeedForward | None, plan: Plan, tokens: float
) -> tuple[Cost, Cost]:  # fmt: skip
    if part is None or part.width == 0:
        return ZERO, ZERO
    width = max(1, part.width // plan.tp)
    up = _product(rank, plan, tokens, (2 if part.gated else 1) * width, hidden)
    down = _product(rank, plan, tokens, hidden, width)
    return up[0] + down[0], up[1] + down[1]


def _experts(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float) -> tuple[Cost, Cost]:
    """Router, exchange, grouped products of the rank's experts, exchange back, and the shared experts."""
    experts = layer.experts
    if experts is None:
        return ZERO, ZERO
    cut = plan.tp if plan.expert_tp else 1
    own = tokens if plan.expert_tp else tokens / plan.tp
    routed = own * experts.top_k * (1.0 if experts.capacity is None else min(1.0, experts.capacity))
    local = max(1.0, experts.count / plan.ep)
    rows = routed * (plan.tp if plan.expert_tp else 1) / local if plan.expert_tp else routed / local
    each = experts.each
    width = max(1, each.width // cut)
    up = _product(rank, plan, rows, (2 if each.gated else 1) * width, hidden, local)
    down = _product(rank, plan, rows, hidden, width, local)
    gate = rank.operators.gemm(own, experts.count, hidden, plan.plain_dtype)
    moved = rank.operators.stream(plan.width * routed * 4 * hidden + 16.0 * own * experts.count, 8)
    acting = rank.operators.stream(plan.width * routed * (3 if each.gated else 2) * width, 1)
    span = Span(plan.ep, cut)
    size = plan.width if plan.dtype not in ("fp8", "fp4") else 1.0
    sent = rank.links.all_to_all(span, routed * hidden * size, experts.top_k)
    back = rank.links.all_to_all(span, routed * hidden * plan.width, experts.top_k)
    shown = 0.25 if plan.overlap_ep else 1.0
    slower = 1 / rank.operators.calibration.grouped
    up, down = ((a.times(slower), b.times(slower)) for a, b in (up, down))
    forward = up[0] + down[0] + Cost(matmul=gate, pointwise=moved + acting, ep=shown * (sent + back))
    backward = up[1] + down[1] + Cost(matmul=2 * gate, pointwise=moved + 2 * acting, ep=shown * (sent + back))
    if experts.shared_width:
        shared = _feed_forward(rank, hidden, FeedForward(experts.shared_width, each.gated), plan, tokens)
        forward, backward = forward + shared[0], backward + shared[1]
    return forward, backward


def _attention_core(
    rank: Rank, layer: Layer, plan: Plan, tokens: float, seq: float, causal: bool
) -> tuple[Cost, Cost]:  # fmt: skip
    own = layer.attention
    heads, kv = max(1, own.heads / plan.tp), max(1, own.kv_heads / plan.tp)
    batch = tokens * plan.cp / seq
    if not plan.fused_attention:
        scores = batch * heads * seq * seq
        passes = []
        for each, products in ((UNFUSED_FORWARD, 1.0), (UNFUSED_BACKWARD, 2.0)):
            gemm = rank.operators.gemm
            both = gemm(seq, seq, own.head_dim, plan.plain_dtype, batch * heads) + gemm(
                seq, own.value_dim, seq, plan.plain_dtype, batch * heads
            )
            moved = each * plan.width + (2 * plan.width + 1 if plan.dropout else 0)
            passes.append(Cost(attention=products * both + rank.operators.stream(moved * scores, 4)))
        return passes[0], passes[1]
    # Rings deal out blocks so that every rank has as many pairs; Ulysses gives a rank whole sequences of fewer heads.
    shared = {"head_dim": own.head_dim, "value_dim": own.value_dim, "window": own.window}
    if plan.cp > 1 and plan.context == "ulysses":
        heads, kv = heads / plan.cp, max(1.0, kv / plan.cp)
        share = 1.0
    else:
        share = 1.0 / plan.cp
    part = seq * share
    whole = pairs(seq, seq, causal, own.window)
    ours = pairs(part, part, causal, own.window)
    factor = whole * share / ours if plan.cp > 1 and plan.context == "ring" else 1.0
    costs = [
        factor
        * rank.operators.attention(
            part,
            part,
            heads,
            kv_heads=kv,
            batch=batch,
            causal=causal,
            backward=back,
            version=plan.attention_version,
            dtype=plan.plain_dtype,
            kv_bytes=plan.width,
            **shared,  # type: ignore[arg-type]
        )
        for back in (False, True)
    ]
    shown = [0.0, 0.0]
    if plan.cp > 1:
        span = Span(plan.cp, plan.tp)
        if plan.context == "ring":
            block = tokens * kv * (own.head_dim + own.value_dim) * plan.width
            sent = rank.links.all_gather(span, block * plan.cp)
            shown = [max(0.0, sent - 0.8 * costs[0]) + 0.1 * sent, max(0.0, 2 * sent - 0.8 * costs[1]) + 0.2 * sent]
        else:
            width = (
                own.heads * (own.head_dim + own.value_dim) + own.kv_heads * (own.head_dim + own.value_dim)
            ) / plan.tp
            sent = rank.links.all_to_all(span, tokens * width * plan.width)
            shown = [sent, sent]
    return Cost(attention=costs[0], cp=shown[0]), Cost(attention=costs[1], cp=shown[1])


def _pointwise(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float) -> tuple[Cost, Cost]:
    """Two norms, two residuals, rotations, the activation. Not compiled, every operator is a pass of its own."""
    own, h = layer.attention, hidden
    spread = tokens / plan.tp if plan.sequence_parallel else tokens
    moved = spread * h * (8.0 + (4.0 if plan.dropout else 0.0))
    moved += tokens / plan.tp * 2 * own.head_dim * (own.heads + own.kv_heads)
    kernels = 8.0
    if layer.feed_forward is not None:
        part = layer.feed_forward
        moved += tokens / plan.tp * part.width * (3 if part.gated else 2)
    if not plan.compiled:
        moved *= rank.operators.calibration.eager
        kernels *= 3
    seconds = rank.operators.stream(plan.width * moved, kernels)
    return Cost(pointwise=seconds), Cost(pointwise=2 * seconds)


def _cross(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float) -> tuple[Cost, Cost]:
    """A block that attends to media: queries and output of every token, its feed-forward network, two more norms.

    Keys and values are of a few latents, and so are the scores: neither is counted.
    """
    block = layer.cross
    if block is None:
        return ZERO, ZERO
    inner = max(1, hidden // plan.tp)
    query, out = _product(rank, plan, tokens, inner, hidden), _product(rank, plan, tokens, hidden, inner)
    wide = _feed_forward(rank, hidden, block.feed_forward, plan, tokens)
    plain = _pointwise(rank, hidden, Layer(layer.attention, block.feed_forward), plan, tokens)
    return query[0] + out[0] + wide[0] + plain[0], query[1] + out[1] + wide[1] + plain[1]


def _tensor_parallel(rank: Rank, hidden: int, layer: Layer, plan: Plan, tokens: float) -> tuple[Cost, Cost]:
    """Two all-reduces a pass, or as many gathers and scatters; experts that are not cut need one."""
    if plan.tp == 1:
        return ZERO, ZERO
    rounds = 2.0 if layer.experts is None or plan.expert_tp else 1.0
    size = tokens * hidden * plan.width
    span = Span(plan.tp)
    one = 2 * rank.links.all_gather(span, size) if plan.sequence_parallel else rank.links.all_reduce(span, size)
    shown = rank.operators.calibration.overlap_tp if plan.overlap_tp else 1.0
    extra = 0.25 if plan.sequence_parallel else 0.0  # gathered again for the weights' gradient, mostly hidden
    return Cost(tp=shown * rounds * one), Cost(tp=shown * (rounds + extra) * one)
