"""Which layouts a model can have on a number of ranks, and for every other one the reason, in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from elasmo.config import ModelConfig, TrainConfig
from elasmo.parallel.layout import Layout, place

ZERO_STAGES = (0, 1, 2, 3)


class LayoutError(ValueError):
    """A layout that the model or the number of ranks does not allow, with the reason."""


@dataclass(frozen=True)
class Job:
    """What a layout must suit besides the model.

    Attributes:
        slots: micro-batch slots of a global batch.
        vocab_size: tokens of the vocabulary; None where it is not known yet, which then bounds nothing.
        bfloat16: whether weights are bfloat16 with float32 masters.
    """

    slots: int
    vocab_size: int | None
    bfloat16: bool = False


def refusals(layout: Layout, model: ModelConfig, job: Job) -> list[str]:
    """Every reason why a layout is illegal for a model; none means that it is legal."""
    return [
        *_cuts(layout, model, job),
        *_experts(layout, model),
        *_zero(layout, job),
        *_pipeline(layout, model, job),
    ]


def layouts(ranks: int, model: ModelConfig, job: Job) -> Iterator[tuple[Layout, list[str]]]:
    """Every (dp, tp, pp, sp, ep, ZeRO stage) with exactly `ranks` ranks, and why it is refused, or no reason."""
    sizes = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for tp, pp, sp in product(sizes, repeat=3):
        if ranks % (tp * pp * sp):
            continue
        dp = ranks // (tp * pp * sp)
        degrees = range(1, dp * sp + 1) if model.decoder.moe is not None else (1,)
        for ep, stage in product(degrees, ZERO_STAGES):
            layout = Layout(dp=dp, tp=tp, pp=pp, sp=sp, ep=ep, zero_stage=stage)
            yield layout, refusals(layout, model, job)


def choose(ranks: int, train: TrainConfig) -> Layout:
    """The layout of a run on `ranks` ranks: the configured cuts, and data parallel over what they leave.

    Raises:
        LayoutError: the cuts do not divide the ranks.
    """
    cuts = train.layout
    shared = cuts.tp * cuts.pp * cuts.sp
    if ranks % shared:
        raise LayoutError(
            f"train.layout needs a multiple of tp={cuts.tp} x pp={cuts.pp} x sp={cuts.sp} = {shared} workers, "
            f"not {ranks}; change train.layout or train.workers."
        )
    return Layout(dp=ranks // shared, zero_stage=train.zero_stage, **cuts.model_dump())


def slot_readers(train: TrainConfig, ranks: int) -> list[tuple[int, int]]:
    """For each rank, which part of how many data-parallel parts of a step's slots it computes."""
    layout = choose(ranks, train)
    return [(place(layout, rank).dp, layout.dp) for rank in range(ranks)]


def legal_sizes(train: TrainConfig, model: ModelConfig, vocab_size: int | None) -> list[int]:
    """Numbers of ranks between `train.workers.min` and `max` on which a run's configured layout is legal.

    Raises:
        LayoutError: there is none; gives the reason for the largest number that the cuts divide.
    """
    job = Job(train.slots, vocab_size, train.dtype == "bfloat16")
    cuts, workers = train.layout, train.workers
    shared = cuts.tp * cuts.pp * cuts.sp
    first = -(-workers.min // shared) * shared
    if first > workers.max:
        raise LayoutError(
            f"train.layout needs a multiple of tp={cuts.tp} x pp={cuts.pp} x sp={cuts.sp} = {shared} workers, and "
            f"train.workers.min={workers.min} to train.workers.max={workers.max} has none; set "
            f"train.workers.max={first}, or change train.layout."
        )
    legal, reason = [], ""
    for ranks in range(first, workers.max + 1, shared):
        reasons = refusals(choose(ranks, train), model, job)
        if not reasons:
            legal.append(ranks)
        else:
            reason = f"train.layout is refused on {ranks} workers: {'; '.join(reasons)}."
    if not legal:
        raise LayoutError(reason)
    return legal


def legal_layouts(ranks: int, model: ModelConfig, job: Job) -> list[Layout]:
    """The legal layouts for exactly `ranks` ranks."""
    return [layout for layout, reasons in layouts(ranks, model, job) if not reasons]


def _cuts(layout: Layout, model: ModelConfig, job: Job) -> Iterator[str]:
    decoder = model.decoder
    for name, count in (("heads", decoder.heads), ("kv_heads", decoder.kv_heads)):
        if count % (layout.tp * layout.sp):
            yield f"tp={layout.tp} x sp={layout.sp} must divide {name}={count}: a rank attends with whole heads"
    for name, most in (("ffn", decoder.ffn), ("vocab_size", job.vocab_size)):
        if most is not None and layout.tp > most:
            yield f"tp={layout.tp} exceeds {name}={most}"
    if model.attends and model.cross_attention.heads % layout.tp:
        yield f"tp={layout.tp} must divide cross_attention.heads={model.cross_attention.heads}"
    if layout.tp_sequence and layout.tp == 1:
        yield "tp_sequence needs tp of at least 2: it shards what tensor-parallel ranks would repeat"


def _experts(layout: Layout, model: ModelConfig) -> Iterator[str]:
    moe = model.decoder.moe
    if layout.ep > 1 and moe is None:
        yield f"ep={layout.ep} needs a model with experts (model.decoder.moe)"
    if (layout.dp * layout.sp) % layout.ep:
        yield f"ep={layout.ep} must divide dp x sp = {layout.dp * layout.sp}: experts lie on ranks that share a model"
    if moe is not None and moe.experts % layout.ep:
        yield f"ep={layout.ep} must divide experts={moe.experts}"


def _zero(layout: Layout, job: Job) -> Iterator[str]:
    if layout.pp > 1 and layout.zero_stage > 1:
        yield (
            f"zero_stage={layout.zero_stage} with pp={layout.pp}: gradients of all micro-batches must be complete "
            "before ZeRO 2 or 3 shards them; use zero_stage 0 or 1"
        )
    if layout.zero_stage == 3 and layout.recompute == "selective":
        yield (
            "zero_stage=3 with recompute=selective: DeepSpeed 0.19's gathered weights and torch's selective "
            "checkpointing give wrong gradients together; use recompute=full"
        )
    if layout.zero_stage == 0 and job.bfloat16:
        yield "zero_stage=0 with bfloat16 keeps masters that checkpoints do not cover; use zero_stage 1, 2 or 3"


def _pipeline(layout: Layout, model: ModelConfig, job: Job) -> Iterator[str]:
    stages = layout.pp * layout.chunks
    if layout.pp > 1 and stages > model.decoder.layers:
        yield f"pp={layout.pp} x chunks={layout.chunks} exceeds layers={model.decoder.layers}"
    micro_batches = -(-job.slots // layout.dp)
    if layout.pp > 1 and layout.schedule == "1f1b" and micro_batches < layout.pp:
        yield f"schedule=1f1b needs pp={layout.pp} micro-batches a rank, not {micro_batches}; use gpipe"
    rounds = max(1, micro_batches // layout.pp)
    if layout.pp > 1 and layout.schedule == "interleaved" and micro_batches % rounds:
        yield f"schedule=interleaved, pp={layout.pp}: {micro_batches} micro-batches do not make {rounds} even rounds"
    wanted = {"gpipe": (1, 1), "1f1b": (1, 1), "interleaved": (2, model.decoder.layers), "zero-bubble": (2, 2)}
    low, high = wanted[layout.schedule]
    if layout.pp > 1 and not low <= layout.chunks <= max(low, high):
        yield f"chunks={layout.chunks} does not suit schedule={layout.schedule}, which has {low} to {high} a rank"
