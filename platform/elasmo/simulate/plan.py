"""How a model is trained on accelerators: the cuts, the schedule, what is kept, and what the kernels are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from elasmo.simulate.model import Model

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
KEPT = ("none", "attention", "operators", "full")


class PlanError(ValueError):
    """A plan that cannot be, with the reason and what would be."""


@dataclass(frozen=True)
class Plan:
    """A training step's layout and batch.

    Attributes:
        micro_batch: sequences of a micro-batch on a data-parallel rank.
        global_batch: sequences of a step.
        chunks: model chunks of a pipeline rank, more than one for `interleaved`, two for `zero-bubble`.
        zero: ZeRO stage, 3 for FSDP.
        sequence_parallel: norms and residuals cut over tp (Korthikanti et al. 2022).
        recompute: what the backward pass computes again: parts of a layer, from `attention` (the core attention),
            `pointwise` (norms, activations), `half` (every second matrix product, as torch's selective checkpointing
            does), `projections`, `latents` (keys and values of their compressed form), `feed_forward`, `experts`,
            `experts_activation`; or `full`.
        dtype: of the matrix products; attention, logits and what is not a product are in 16 bits, or in 32 where the
            products are fp32 or tf32.
        context: how cp exchanges keys and values.
        fused_attention: no scores in memory (Dao et al. 2022); before, softmax and dropout passed through memory.
        attention_version: of the fused kernels: FlashAttention 1 (2022) or 2 (2023), or 3 for those written for this
            generation of hardware (FlashAttention 3, cuDNN).
        dropout: masks are kept for the backward pass.
        compiled: norms, activations and casts are fused kernels, not one pass through memory an operator.
        overlap_tp, overlap_dp, overlap_ep: communication that runs beside compute.
        gradient_bytes: of a gradient that is accumulated and reduced.
        expert_tp: experts are cut over tp as well.
        document: tokens that a query may attend to in a packed sequence, the mean over queries; None for all of `seq`.
            Only fused kernels save the pairs between samples.
        hybrid: ZeRO 3 inside a scale-up domain, replicas across domains (FSDP's hybrid sharding, slices of a TPU pod).
    """

    seq: int
    global_batch: int
    micro_batch: int = 1
    dp: int = 1
    tp: int = 1
    pp: int = 1
    chunks: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 1
    sequence_parallel: bool = False
    schedule: Schedule = "1f1b"
    recompute: frozenset[str] = frozenset()
    dtype: str = "bf16"
    context: Literal["ring", "ulysses"] = "ring"
    fused_attention: bool = True
    attention_version: int = 2
    dropout: bool = False
    compiled: bool = True
    overlap_tp: bool = False
    overlap_dp: bool = True
    overlap_ep: bool = False
    gradient_bytes: float = 4.0
    expert_tp: bool = False
    hybrid: bool = False
    document: float | None = None

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        """Of a data-parallel rank and step."""
        return -(-self.global_batch // (self.dp * self.micro_batch))

    @property
    def tokens(self) -> float:
        """Of a micro-batch on a rank, before tp cuts them."""
        return self.micro_batch * self.seq / self.cp

    @property
    def plain_dtype(self) -> str:
        """Of products that are never quantised: attention, logits, routers, towers' inputs."""
        return "bf16" if self.dtype in ("fp8", "fp4") else self.dtype

    @property
    def width(self) -> float:
        """Bytes of an activation, and of a weight that products read."""
        return 4.0 if self.dtype in ("fp32", "tf32") else 2.0

    @property
    def attended(self) -> float:
        """Tokens of the sequences that attention computes."""
        return self.document if self.document and self.fused_attention and self.cp == 1 else float(self.seq)

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered for every layer and micro-batch; a pipeline keeps them for the whole step."""
        return self.zero >= 3 and self.pp == 1

    @property
    def full_recompute(self) -> bool:
        return "full" in self.recompute

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold the same experts."""
        whole = self.dp * self.cp * (1 if self.expert_tp else self.tp)
        return max(1, whole // self.ep)

    def having(self, **changes: object) -> Plan:
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        cuts = [f"{name}={getattr(self, name)}" for name in ("dp", "tp", "pp", "cp", "ep") if getattr(self, name) > 1]
        flags = [f"zero={self.zero}", f"micro-batch={self.micro_batch}"]
        flags += ["sp"] if self.sequence_parallel else []
        flags += [f"{self.schedule}x{self.chunks}" if self.chunks > 1 else self.schedule] if self.pp > 1 else []
        flags += [f"recompute={'+'.join(sorted(self.recompute))}"] if self.recompute else []
        return " ".join([*(cuts or ["one rank"]), *flags])


def refusals(plan: Plan, model: Model, count: int | None = None) -> list[str]:
    """Every reason why a plan cannot be; none means that it can. Memory is another question."""
    found = []
    for name in ("seq", "global_batch", "micro_batch", "dp", "tp", "pp", "chunks", "cp", "ep"):
        if getattr(plan, name) < 1:
            found.append(f"{name}={getattr(plan, name)} must be at least 1")
    if found:
        return found
    if count is not None and plan.world != count:
        found.append(f"dp x tp x pp x cp = {plan.world} must be the {count} accelerators")
    heads = model.layers[0].attention.heads
    if heads % plan.tp:
        found.append(f"tp={plan.tp} must divide heads={heads}; the nearest is tp={_below(heads, plan.tp)}")
    if plan.pp * plan.chunks > model.depth:
        found.append(f"pp={plan.pp} x chunks={plan.chunks} exceeds layers={model.depth}; lower either")
    if plan.global_batch < plan.dp * plan.micro_batch:
        found.append(
            f"global_batch={plan.global_batch} is less than dp={plan.dp} x micro_batch={plan.micro_batch}; "
            f"the largest dp is {max(1, plan.global_batch // plan.micro_batch)}"
        )
    experts = next((layer.experts for layer in model.layers if layer.experts is not None), None)
    if plan.ep > 1 and experts is None:
        found.append(f"ep={plan.ep} needs a model with experts; use ep=1")
    if experts is not None and experts.count % plan.ep:
        found.append(
            f"ep={plan.ep} must divide experts={experts.count}; the nearest is {_below(experts.count, plan.ep)}"
        )
    shared = plan.dp * plan.cp * (1 if plan.expert_tp else plan.tp)
    if experts is not None and shared % plan.ep:
        found.append(f"ep={plan.ep} must divide the {shared} ranks of a pipeline stage")
    if plan.pp > 1 and plan.zero == 2:
        found.append("zero=2 with pp > 1 reduces gradients at every micro-batch; use zero=1")
    if plan.zero not in (0, 1, 2, 3):
        found.append(f"zero={plan.zero} must be 0, 1, 2 or 3")
    if plan.context == "ulysses" and heads % (plan.tp * plan.cp):
        found.append(f"tp={plan.tp} x cp={plan.cp} must divide heads={heads} with Ulysses; use ring")
    if plan.chunks > 1 and plan.schedule != "interleaved":
        found.append(f"chunks={plan.chunks} needs schedule=interleaved, not {plan.schedule}; use chunks=1")
    elif plan.chunks > 1 and plan.micro_batches % plan.pp:
        found.append(
            f"schedule=interleaved needs micro-batches that pp={plan.pp} divides, not {plan.micro_batches}; "
            "change the global batch or use chunks=1"
        )
    if plan.seq % plan.cp:
        found.append(f"cp={plan.cp} must divide seq={plan.seq}")
    return found


def _below(whole: int, most: int) -> int:
    return next(size for size in range(min(most, whole), 0, -1) if whole % size == 0)
