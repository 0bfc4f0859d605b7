"""A model under a layout in DeepSpeed: runs a step's micro-batches forward and backward, and batches for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import TrainConfig
from elasmo.model.batch import Batch, pack
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel.forward import ParallelModel
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.parallelize import parallelize
from elasmo.parallel.pipeline import MicroBatch, Pipeline
from elasmo.parallel.stages import head_cost, layer_costs, split
from elasmo.train import deepspeed_adapter
from elasmo.train.loss import EMPTY

WIDTH = 32
"""Rows of a pipeline are padded to a multiple of this, so that few lengths, each with buffers of its own, occur."""


@dataclass(frozen=True)
class SlotOutput:
    """What a micro-batch gave, for the log: the packed batch, losses [1, seq] and correctness [1, seq] of its row."""

    batch: Batch
    losses: Tensor
    correct: Tensor


class TrainEngine:
    """Everything between samples and the optimizer on one rank.

    Attributes:
        shapes: of all tensors of the whole model.
        shards: what this rank holds of them.

    Args:
        model: whole, on its device, with the same weights on every rank; it is cut in place.
        layout: of all ranks of the default process group.
        slots: micro-batch slots of a global batch.
        timeout_s: of the groups' collectives.
    """

    def __init__(
        self, model: MultimodalDecoder, train: TrainConfig, layout: Layout, slots: int, timeout_s: float = 60.0
    ) -> None:
        self.layout = layout
        self.slots = slots
        self.mesh = make_mesh(layout, timeout_s)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        decoder, vocab_size = model.config.decoder, model.vocab_size
        blocks = model.config.cross_attention if model.config.attends else None
        stages = split(layer_costs(decoder, blocks), layout.pp * layout.chunks, last=head_cost(decoder, vocab_size))
        self.shards = parallelize(model, self.mesh, stages)
        self.model = ParallelModel(model, self.mesh, self.shards)
        self.pipeline = Pipeline(self.model, stages) if layout.pp > 1 else None
        self.device = next(model.parameters()).device
        parallel = (self.mesh, self.shards)
        self.deepspeed = deepspeed_adapter.build_engine(self.model, train, self.micro_steps(slots), parallel)

    def micro_steps(self, slots: int) -> int:
        """Micro-batches that a rank runs for a step of so many slots, some of them perhaps empty.

        A pipeline's schedules take multiples of what the run's usual step gives each rank, or of the stages.
        """
        count, usual = -(-slots // self.layout.dp), -(-self.slots // self.layout.dp)
        stages = self.layout.pp
        return count if stages == 1 or count == usual else -(-count // stages) * stages

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its slots: their losses, rows and tokens are counted once."""
        place = self.mesh.place
        return place.tp == place.sp == 0 and (self.pipeline is None or self.pipeline.has_last)

    def step(
        self,
        feed: Iterable[Sequence[Encoded] | None],
        target_tokens: int,
        check: Callable[[int, Tensor], None] = lambda micro, losses: None,
        slots: int | None = None,
    ) -> Iterator[SlotOutput | None]:
        """One optimizer step, advanced slot by slot as the results are taken.

        Args:
            feed: samples of each of the `micro_steps(slots)` slots of this rank, None where it has none: it then runs
                an empty micro-batch of weight zero, since every rank issues the same collectives.
            slots: of this step's global batch; as many as the engine was made for if None.
            target_tokens: of the whole global batch, over which the loss is a mean.
            check: called with each slot's losses before they reach a gradient.
        """
        # DeepSpeed averages gradients over the ranks that hold the same parameters; sums are wanted.
        weight = self.layout.zero_ranks / target_tokens
        slots = slots or self.slots
        aux = self.layout.zero_ranks / slots
        if self.pipeline is not None:
            yield from self._pipeline_step(self.pipeline, list(feed), (weight, aux), check)
            return
        last = self.micro_steps(slots) - 1
        for micro, samples in enumerate(feed):
            self.deepspeed.set_gradient_accumulation_boundary(micro == last)
            batch = self.pack(samples)
            real = samples is not None
            self.model.set_aux_scale(aux if real else 0.0)
            losses, correct = self.deepspeed(batch)
            if real:
                check(micro, losses)
            self.deepspeed.backward(losses.sum() * (weight if real else 0.0), scale_wrt_gas=False)
            self.deepspeed.step()
            output = SlotOutput(batch, self._row(losses.detach()), self._row(correct))
            yield output if real else None

    def evaluate(self, samples: Sequence[Encoded] | None) -> SlotOutput | None:
        """A forward pass without gradients; every rank calls it as often as every other, None being an empty batch."""
        batch = self.pack(samples)
        if self.pipeline is not None:
            found = self.pipeline.evaluate(batch)
        else:
            with torch.no_grad():
                found = self.deepspeed(batch)
        if found is None:
            return None
        output = SlotOutput(batch, self._row(found[0]), self._row(found[1]))
        return output if samples is not None else None

    def pack(self, samples: Sequence[Encoded] | None, width: int | None = None) -> Batch:
        """One row on this rank's device, as long as the layout's cuts need, or `width` long."""
        return pack(samples if samples is not None else [EMPTY], self.layout.row_multiple, width).to(self.device)

    def _pipeline_step(
        self,
        pipeline: Pipeline,
        slots: list[Sequence[Encoded] | None],
        weights: tuple[float, float],
        check: Callable[[int, Tensor], None],
    ) -> Iterator[SlotOutput | None]:
        longest = max(sum(len(sample.tokens) for sample in samples or [EMPTY]) for samples in slots)
        width = -(-longest // (WIDTH * self.layout.row_multiple)) * WIDTH * self.layout.row_multiple
        micros = [
            MicroBatch(self.pack(samples, width), *(weights if samples is not None else (0.0, 0.0)))
            for samples in slots
        ]
        outputs = pipeline.step(micros, lambda micro, losses: check(micro, losses) if slots[micro] else None)
        deepspeed_adapter.step_accumulated(self.deepspeed, self.mesh, self.shards)
        for number, samples in enumerate(slots):
            if outputs is None or samples is None:
                yield None
                continue
            losses, correct = outputs[number]
            yield SlotOutput(micros[number].batch, self._row(losses), self._row(correct))

    def _row(self, own: Tensor) -> Tensor:
        """The whole row of what each sequence-parallel rank has a piece of."""
        group = self.mesh.sp
        if group.size == 1:
            return own
        parts = [torch.empty_like(own) for _ in group.ranks]
        dist.all_gather(parts, own.contiguous(), group=group.handle)
        return torch.cat(parts, dim=1)
