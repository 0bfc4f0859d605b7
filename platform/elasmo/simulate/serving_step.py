"""One step of an inference engine: decode and prompt tokens through all layers, as work on a roofline, then as time.

`work` counts what does not depend on the serving constants; `seconds` and `power` turn it into time and watts, over
whole arrays of steps at once, so that the constants can be fitted in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from elasmo.simulate.accelerator import Accelerator
from elasmo.simulate.deployment import Deployment, DeploymentError
from elasmo.simulate.engine_kind import TRAITS
from elasmo.simulate.model import Experts, FeedForward, Layer, Tower
from elasmo.simulate.operators import Operators
from elasmo.simulate.serving_constants import ServingConstants

Array = np.ndarray
KERNELS_PER_LAYER = 10
KERNELS_PER_EXPERT_LAYER = 15
KERNELS_AROUND = 15
"""Norms, products, rotations, cache writes, attention, activations, residuals; routing; embedding, logits, sampling."""
BLEND = 1.9
"""How sharp the knee between compute and memory is in attention."""
HOST_BLEND = 6.0
"""And between the device's kernels and the host that launches them."""


@dataclass(frozen=True)
class Batch:
    """Steps, as arrays of one length or numbers.

    Attributes:
        decode: sequences that each add one token.
        context: tokens that each of them looks back on, in the mean.
        prefill: prompt tokens.
        seen: keys that a prompt token looks back on, in the mean.
        logits: positions whose next token is wanted.
        media: media encoded.
    """

    decode: Array | float = 0.0
    context: Array | float = 0.0
    prefill: Array | float = 0.0
    seen: Array | float = 0.0
    logits: Array | float = 1.0
    media: Array | float = 0.0


@dataclass(frozen=True)
class Work:
    """What steps do on their fullest accelerator; every field an array [steps], seconds at full peak or bandwidth.

    Attributes:
        products_s, experts_s: of the operator roofline, launches left out.
        decode_compute_s, cache_read_s: of decode attention.
        prefill_compute_s: of prompt attention.
        stream_s: of what else passes through memory.
        kernels, reduces, reduce_s: kernels, all-reduces and their bytes over the scale-up bandwidth.
        encoder_s: of media encoders.
        sequences: that the host handles. stages: of a pipeline.
        compute_s, memory_s: all FLOPs over the peak, all bytes over the bandwidth: what power follows.
    """

    products_s: Array
    experts_s: Array
    decode_compute_s: Array
    cache_read_s: Array
    prefill_compute_s: Array
    stream_s: Array
    kernels: Array
    reduces: Array
    reduce_s: Array
    encoder_s: Array
    sequences: Array
    compute_s: Array
    memory_s: Array

    def at(self, index: slice | Array) -> Work:
        return replace(self, **{each.name: getattr(self, each.name)[index] for each in fields(self)})


def concatenate(parts: list[Work]) -> Work:
    """Steps of several in one."""
    return Work(**{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Work)})


def experts_hit(experts: Experts, tokens: Array, routing: float) -> Array:
    """Experts that at least one of `tokens` chooses, were `routing` x tokens of them to choose independently."""
    hit: Array = experts.count * (1.0 - (1.0 - experts.top_k / experts.count) ** np.maximum(tokens * routing, 1.0))
    out: Array = np.minimum(hit, np.maximum(tokens, 1.0) * experts.top_k)
    return out


def work(deployment: Deployment, batch: Batch, routing: float = 0.6, operators: Operators | None = None) -> Work:
    """What the steps of `batch` do under a deployment, on one pass through all its stages."""
    cut = deployment
    arrays = [np.atleast_1d(np.asarray(getattr(batch, each.name), float)) for each in fields(Batch)]
    decode, context, prefill, seen, logits, media = (each.copy() for each in np.broadcast_arrays(*arrays))
    share = cut.dp * cut.pp  # a stage holds 1/pp of the sequences at a time, and passes them on
    decode, prefill, media = decode / share, prefill / share, media / share
    logits = np.minimum(np.maximum(logits / share, 1.0), np.maximum(decode + prefill, 1.0))
    tokens = decode + prefill
    tally = _Tally(cut, operators or Operators.of(cut.chip), tokens.shape[0])
    for layer, count in Counter(cut.model.layers).items():
        _attention(tally, layer, count, decode, context, prefill, seen)
        if layer.experts is not None:
            _experts(tally, layer.experts, count, tokens, routing)
        if layer.feed_forward is not None:
            _feed_forward(tally, layer.feed_forward, count, tokens)
    hidden, vocab = cut.model.hidden, cut.model.vocab
    tally.product(logits, vocab / cut.tp, hidden, 1, kept=2.0, dtype="bf16")
    tally.stream(logits * vocab * 12.0, 1)
    for tower in cut.model.towers:
        _encoder(tally, tower, media)
    depth = cut.model.depth
    routed = sum(layer.experts is not None for layer in cut.model.layers)
    tally.sums["kernels"] += (depth - routed) * KERNELS_PER_LAYER + routed * KERNELS_PER_EXPERT_LAYER + KERNELS_AROUND
    ranks = cut.tp * cut.dp
    if ranks > 1:
        link = cut.chip.scaleout_bandwidth if cut.crosses else cut.chip.scaleup_bandwidth
        if link <= 0:
            raise DeploymentError(
                f"The link of {cut.chip.name} is not known; give it in the hardware YAML, or use tp=1."
            )
        moved = 2.0 * (ranks - 1) / ranks * tokens * hidden * 2.0 / link
        tally.sums["reduces"] += 2.0 * depth
        tally.sums["reduce_s"] += 2.0 * depth * moved
    tally.sums["reduces"] += cut.pp - 1.0
    tally.sums["sequences"] += decode * share / cut.pp
    return Work(**tally.sums)


class _Tally:
    """Sums of work over operators."""

    def __init__(self, cut: Deployment, operators: Operators, steps: int) -> None:
        self.cut, self.operators = cut, operators
        self.peak, self.bandwidth = cut.chip.peak(cut.precision.dtype), cut.chip.bandwidth
        self.wide = cut.chip.peak("bf16" if "bf16" in cut.chip.peaks else "fp16")
        self.sums = {each.name: np.zeros(steps) for each in fields(Work)}

    def product(
        self, rows: Array, columns: float, inner: float, count: float, kept: float, dtype: str | None = None
    ) -> None:
        """`count` products of [rows, inner] with weights [inner, columns] of `kept` bytes each."""
        kind = dtype or self.cut.precision.dtype
        kind = kind if kind in self.cut.chip.peaks else "fp16"
        self.sums["products_s"] += count * _each(
            lambda m: self.operators.gemm(m, columns, inner, kind, weight_bytes=kept) - self.operators.launch_s, rows
        )
        self.busy(2.0 * rows * columns * inner, kept * columns * inner + 2.0 * rows * (columns + inner), count, kind)

    def busy(self, flops: Array, moved: Array, count: float, kind: str) -> None:
        """Adds to what power follows."""
        self.sums["compute_s"] += count * flops / self.cut.chip.peak(kind)
        self.sums["memory_s"] += count * moved / self.bandwidth

    def stream(self, moved: Array, count: float) -> None:
        self.sums["stream_s"] += count * moved / self.bandwidth
        self.sums["memory_s"] += count * moved / self.bandwidth


def _each(time: Callable[[float], float], rows: Array) -> Array:
    """A scalar operator over an array, once for each distinct number of rows."""
    distinct, where = np.unique(np.ceil(rows), return_inverse=True)
    out: Array = np.array([time(float(each)) for each in distinct])[where]
    out = np.maximum(out, 0.0)
    return out


def _attention(
    tally: _Tally, layer: Layer, count: int, decode: Array, context: Array, prefill: Array, seen: Array
) -> None:
    cut, attention, hidden = tally.cut, layer.attention, tally.cut.model.hidden
    tokens, kept = decode + prefill, cut.precision.dense_bytes
    products = attention.products(hidden)
    for number, (outputs, inputs) in enumerate(products):
        last = number == len(products) - 1
        whole = attention.latent and inputs == hidden and not last  # each rank compresses all of its input
        if last:
            tally.product(tokens, outputs, inputs / cut.tp, count, kept)
        elif attention.latent or attention.kv_heads >= cut.tp:
            tally.product(tokens, outputs if whole else outputs / cut.tp, inputs, count, kept)
        else:
            keys = attention.kv_heads * (attention.head_dim + attention.value_dim)
            repeated = (outputs - keys) / cut.tp + keys / attention.kv_heads
            tally.product(tokens, repeated, inputs, count, kept)
    heads = attention.heads / cut.tp
    held = attention.kv_width / (1 if attention.latent else min(cut.tp, attention.kv_heads))
    read = held * cut.precision.cache_bytes
    window = attention.window or np.inf
    back, ahead = np.minimum(context, window), np.minimum(seen, window)
    width = attention.head_dim + attention.value_dim
    latent = 2.0 * attention.kv_rank + attention.rope_dim if attention.latent else float(width)
    answers = heads * width * 2.0
    flops, moved = 2.0 * decode * back * heads * latent, decode * (back * read + answers)
    tally.sums["decode_compute_s"] += count * flops / tally.wide
    tally.sums["cache_read_s"] += count * moved / tally.bandwidth
    pairs = 2.0 * prefill * ahead * heads * width
    tally.sums["prefill_compute_s"] += count * pairs / tally.wide
    tally.sums["compute_s"] += count * (flops + pairs) / tally.wide
    tally.sums["memory_s"] += count * (moved + prefill * (read + answers)) / tally.bandwidth
    tally.stream(tokens * 2.0 * (8.0 * hidden + 3.0 * heads * attention.head_dim + 3.0 * held), count)


def _feed_forward(tally: _Tally, ffn: FeedForward, count: float, tokens: Array) -> None:
    cut, hidden = tally.cut, tally.cut.model.hidden
    width, wide = ffn.width / cut.tp, 2 if ffn.gated else 1
    tally.product(tokens, wide * width, hidden, count, cut.precision.dense_bytes)
    tally.product(tokens, hidden, width, count, cut.precision.dense_bytes)
    tally.stream(tokens * 2.0 * width * (wide + 1), count)


def _experts(tally: _Tally, experts: Experts, count: int, tokens: Array, routing: float) -> None:
    cut, hidden, each = tally.cut, tally.cut.model.hidden, experts.each
    ranks = cut.tp * cut.dp
    everyone = tokens * cut.dp
    hit = experts_hit(experts, everyone, routing)
    width = float(each.width)
    if cut.expert_parallel:
        hit, placed = np.maximum(hit / ranks, 1.0), everyone * experts.top_k / ranks
    else:
        width, placed = width / ranks, everyone * experts.top_k
    rows = np.maximum(placed / hit, 1.0)
    kind, kept, wide = cut.precision.dtype, cut.precision.expert_bytes, 2 if each.gated else 1
    for columns, inner in ((wide * width, float(hidden)), (float(hidden), width)):
        times = [
            tally.operators.gemm(float(np.ceil(m)), columns, inner, kind, n, kept) - tally.operators.launch_s
            for m, n in zip(rows, hit, strict=True)
        ]
        tally.sums["experts_s"] += count * np.maximum(np.array(times), 0.0)
        tally.busy(
            2.0 * placed * columns * inner, kept * hit * columns * inner + 2.0 * placed * (columns + inner), count, kind
        )
    tally.product(tokens, experts.count, hidden, count, 2.0, "bf16")
    tally.stream(placed * 2.0 * width * (wide + 1) + tokens * 4.0 * hidden, count)
    if experts.shared_width:
        _feed_forward(tally, replace(each, width=experts.shared_width), count, tokens)


def _encoder(tally: _Tally, tower: Tower, media: Array) -> None:
    """Products of a medium's positions through the tower and its projector, on each rank's share of the media."""
    h = tower.hidden
    square = 4.0 * tower.positions * tower.attention.heads * tower.attention.head_dim
    flops = 2.0 * (tower.layers * tower.layer.parameters(h, 2) + tower.input_parameters) * tower.positions
    flops += tower.layers * square * tower.positions + 2.0 * tower.projector_parameters * tower.tokens
    spent = media * flops / tally.cut.tp / tally.wide
    tally.sums["encoder_s"] += spent
    tally.sums["compute_s"] += spent


def seconds(done: Work, deployment: Deployment, constants: ServingConstants) -> Array:
    """Time of each step, from one token to the next; without rare stalls of the host."""
    kind, c = deployment.engine, constants
    rate = c.prefill_attention if TRAITS[kind].flash_decoding else c.core_attention
    decode = _blend(done.decode_compute_s / rate, done.cache_read_s / c.cache_read)
    ranks = deployment.tp * deployment.dp
    reduce = c.direct_reduce_s * np.log2(2 * ranks) / 2 if deployment.reduces_directly else c.reduce_s
    device = (
        done.products_s
        + c.expert * done.experts_s
        + decode
        + done.prefill_compute_s / c.prefill_attention
        + done.stream_s / c.of("stream", kind)
        + done.kernels * c.gap_s
        + done.reduces * reduce
        + done.reduce_s / c.link
        + done.encoder_s / c.encoder
    )
    launched = done.kernels * (c.launch_s.get(kind, 0.0))
    device = (device**HOST_BLEND + launched**HOST_BLEND) ** (1.0 / HOST_BLEND)
    out: Array = device + c.of("step_s", kind) + done.sequences * c.of("sequence_s", kind)
    return out


def _blend(compute: Array, memory: Array) -> Array:
    out: Array = (compute**BLEND + memory**BLEND) ** (1.0 / BLEND)
    return out


def stall_s(deployment: Deployment, constants: ServingConstants) -> float:
    """Mean of rare stalls of the host in a step; it moves the mean and the tail, not the median."""
    return constants.stall_s.get(deployment.chip.generation, 0.0)


def watts_share(
    compute_s: Array | float, memory_s: Array | float, step_s: Array | float, constants: ServingConstants
) -> Array:
    """Power as a share of the accelerator's, for steps that do that work in that time."""
    c = constants
    flop = np.minimum(compute_s / step_s, 1.0) ** c.exponent
    byte = np.minimum(memory_s / step_s, 1.0) ** c.exponent
    out: Array = c.idle + c.compute * flop + c.memory * byte
    return out


def power_w(compute_s: float, memory_s: float, step_s: float, chip: Accelerator, constants: ServingConstants) -> float:
    """Watts of one accelerator, at most its limit.

    Raises:
        DeploymentError: the accelerator's power is not known.
    """
    if chip.power_w is None:
        raise DeploymentError(f"power_w of {chip.name} is not known; give it in the hardware YAML.")
    share = float(watts_share(compute_s, memory_s, step_s, constants))
    return min(chip.power_w * share, chip.power_cap_w or chip.power_w)


def quantiles(values: Array, weights: Array, wanted: tuple[float, ...]) -> Array:
    """Weighted quantiles along the last axis: [quantiles, rows] of values [rows, bins] and weights [bins]."""
    order = np.argsort(values, axis=1)
    ranked, share = np.take_along_axis(values, order, 1), weights[order]
    reached = np.cumsum(share, axis=1) - share / 2
    return np.array([[np.interp(q, x, y) for x, y in zip(reached, ranked, strict=True)] for q in wanted])
