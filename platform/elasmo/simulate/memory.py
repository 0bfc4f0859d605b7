"""Bytes on one accelerator in training, by category.

Model states follow ZeRO (Rajbhandari et al. 2020, section 3); activations of unfused attention with dropout follow
Korthikanti et al. (2022, equations 1 to 6), those of fused kernels what such kernels keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasmo.simulate.model import Layer, Model
from elasmo.simulate.plan import Plan

HALF = 2.0
RESERVED = 1.5 * (1 << 30)
"""Context, kernels, communication buffers and workspaces of the libraries."""


@dataclass(frozen=True)
class States:
    """Bytes of model states on a rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    parameters: float, ranks: float, zero: int, trained: float | None = None, gradient_bytes: float = 2.0,
    width: float = HALF,
) -> States:  # fmt: skip
    """Weights, gradients, float32 master and Adam moments; ZeRO cuts them over `ranks`.

    Args:
        width: bytes of a weight; one of 4 is its own master.
        trained: parameters with gradients; all when None.
        gradient_bytes: 2 in the ZeRO paper, 4 where gradients are accumulated in float32.
    """
    own = parameters if trained is None else trained
    return States(
        width * parameters / (ranks if zero >= 3 else 1),
        gradient_bytes * own / (ranks if zero >= 2 else 1),
        (12.0 if width == HALF else 8.0) * own / (ranks if zero >= 1 else 1),
    )


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest rank by category."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    reserved: float

    @property
    def total(self) -> float:
        return (
            self.weights + self.gradients + self.optimizer + self.gathered + self.activations + self.logits
            + self.reserved
        )  # fmt: skip

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"total": self.total}


def layer_activation_bytes(hidden: int, layer: Layer, plan: Plan, tokens: float, seq: float) -> float:
    """Bytes that a layer keeps for its backward pass, of `tokens` tokens of a micro-batch on a rank.

    With full recompute only its input. `tokens` are those before tp cuts them.
    """
    own, t, size = layer.attention, plan.tp, plan.width
    spread = t if plan.sequence_parallel else 1
    if plan.full_recompute:
        return size * tokens * hidden / spread
    queries, values = own.heads * own.head_dim, own.heads * own.value_dim
    if own.latent:
        keys = own.heads * (own.head_dim + own.value_dim) + (own.q_rank + own.kv_rank + own.rope_dim) * t
    else:
        keys = own.kv_heads * (own.head_dim + own.value_dim)
    kept_points = 0.0 if {"pointwise", "half"} & plan.recompute else 1.0
    # Replicated without sequence parallelism: both residual inputs, both norms' outputs, dropout masks.
    base = hidden * (2 * size + 2 * size * (kept_points if plan.compiled else 1.0) + (2.0 if plan.dropout else 0.0))
    if not plan.compiled and kept_points:
        base += 2 * 4 * hidden  # norms keep float32 inputs
    bytes_ = tokens * base / spread
    # Cut over tp: queries, keys, values, what attention gives.
    inner = size * (queries + keys + values) + 4.0 * own.heads
    if "attention" in plan.recompute and plan.fused_attention:
        inner -= size * values + 4.0 * own.heads
    if own.latent and {"projections", "latents"} & plan.recompute:
        inner -= size * (queries + keys - (own.q_rank + own.kv_rank + own.rope_dim) * t)
    bytes_ += tokens * inner / t
    if not plan.fused_attention and "attention" not in plan.recompute:
        # Softmax's output; of dropout a second one and the mask.
        bytes_ += (2 * size + 1 if plan.dropout else size) * own.heads * tokens * seq / t
    part = layer.feed_forward
    if part is not None and "feed_forward" not in plan.recompute:
        wide = part.width * ((2 if part.gated else 1) + kept_points)
        bytes_ += tokens * size * wide / t
    if layer.cross is not None:
        block = layer.cross.feed_forward
        wide = block.width * ((2 if block.gated else 1) + kept_points)
        bytes_ += tokens * (base / spread + size * (2 * hidden + wide) / t)
    experts = layer.experts
    if experts is not None and "experts" not in plan.recompute:
        routed = tokens * experts.top_k / (1 if plan.expert_tp else t)
        acts = kept_points if "experts_activation" not in plan.recompute else 0.0
        wide = experts.each.width * ((2 if experts.each.gated else 1) + acts) / (t if plan.expert_tp else 1)
        bytes_ += routed * size * (hidden + wide) + tokens / t * 8.0 * experts.count
        if experts.shared_width:
            bytes_ += tokens * size * experts.shared_width * ((2 if experts.each.gated else 1) + acts) / t
    if "half" in plan.recompute:
        wide = part.width * (2 if part.gated else 1) if part is not None else 0
        bytes_ -= tokens * size * (hidden + 0.5 * wide) / t * 0.5
    return bytes_


def training_memory(model: Model, plan: Plan) -> Memory:
    """Bytes on the first pipeline rank, which holds most micro-batches in flight, or the last, which has the logits."""
    return max((_on_rank(model, plan, rank) for rank in {0, plan.pp - 1}), key=lambda memory: memory.total)


def rank_layers(model: Model, plan: Plan, rank: int) -> list[Layer]:
    """Decoder layers of a pipeline rank, all its chunks together."""
    parts = plan.pp * plan.chunks
    found = []
    for chunk in range(plan.chunks):
        first, end = (round(model.depth * (chunk * plan.pp + rank + more) / parts) for more in (0, 1))
        found += list(model.layers[first:end])
    return found


def rank_parameters(model: Model, plan: Plan, rank: int) -> tuple[float, float]:
    """Parameters of a rank before ZeRO cuts them: those of everything but routed experts, and of routed experts."""
    layers = rank_layers(model, plan, rank)
    experts = sum(
        layer.experts.count * layer.experts.each.parameters(model.hidden) for layer in layers if layer.experts
    )
    dense = sum(layer.parameters(model.hidden, model.norm_width) for layer in layers) - experts
    table = model.hidden * model.vocab
    if rank == 0:
        dense += table + model.hidden * model.positions + sum(tower.parameters for tower in model.towers)
    if rank == plan.pp - 1:
        dense += (0 if model.tied and plan.pp == 1 else table) + model.norm_width * model.hidden
    return dense / plan.tp, experts / plan.ep / (plan.tp if plan.expert_tp else 1)


def _on_rank(model: Model, plan: Plan, rank: int) -> Memory:
    dense, experts = rank_parameters(model, plan, rank)
    trained = model.trained_parameters / model.parameters
    wide = state_bytes(dense, plan.dp * plan.cp, plan.zero, dense * trained, plan.gradient_bytes, plan.width)
    routed = state_bytes(experts, plan.expert_ranks, plan.zero, experts * trained, plan.gradient_bytes, plan.width)
    layers = rank_layers(model, plan, rank)
    kept = sum(layer_activation_bytes(model.hidden, layer, plan, plan.tokens, plan.seq) for layer in layers)
    flying = in_flight(plan, rank)
    working = 0.0
    if plan.full_recompute and layers:
        whole = plan.having(recompute=frozenset())
        # The layer that is computed again, and the gradients of what it holds.
        working = 2 * layer_activation_bytes(model.hidden, layers[0], whole, plan.tokens, plan.seq)
    gathered = 0.0
    if plan.zero >= 3 and not plan.gathers:
        gathered = (plan.width + plan.gradient_bytes) * (dense + experts)
    elif plan.zero >= 3 and layers:
        biggest = max((layer.parameters(model.hidden) for layer in layers), default=0) / plan.tp / plan.ep
        largest = max(biggest, model.hidden * model.vocab / plan.tp if rank in (0, plan.pp - 1) else 0)
        gathered = 2 * plan.width * biggest + (plan.width + plan.gradient_bytes) * largest
    logits = 0.0
    if rank == plan.pp - 1:
        # Logits, their float32 copy where they are in 16 bits, and the gradient of that, at the peak.
        logits = plan.tokens * model.vocab / plan.tp * ((2.0 if plan.width == HALF else 0.0) + 4.0 + 4.0)
    towers = 0.0
    if rank == 0:
        for tower in model.towers:
            if not tower.frozen:
                each = layer_activation_bytes(
                    tower.hidden, tower.layer, plan.having(cp=1), tower.positions, tower.positions
                )
                towers += tower.layers * each * plan.micro_batch * tower.media
    return Memory(
        wide.weights + routed.weights, wide.gradients + routed.gradients, wide.optimizer + routed.optimizer, gathered,
        kept * flying + working + towers, logits, RESERVED,
    )  # fmt: skip


def in_flight(plan: Plan, rank: int) -> float:
    """Micro-batches whose activations a rank keeps at once, in units of all its layers."""
    m = plan.micro_batches
    if plan.pp == 1:
        return 1.0
    if plan.schedule == "gpipe":
        return float(m)
    if plan.chunks > 1 and plan.schedule == "interleaved":
        return min(m, plan.pp - rank + (plan.pp - 1) / plan.chunks)
    return float(min(m, plan.pp - rank))
