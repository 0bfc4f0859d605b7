"""Pipeline parallelism: a step's slots through torch's pipeline schedules, with the encoders outside of the pipeline.

All ranks of a slot first encode the media of all its micro-batches together (see `encoders`). The schedule then runs
the decoder's stages with those embeddings as leaves of the first stage, and their gradients go back through the
encoders at the end. Gradients only accumulate here: summing them over ranks and stepping is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from elasmo.model.batch import Batch
from elasmo.model.multimodal import Media
from elasmo.parallel.forward import ParallelModel
from elasmo.parallel.layout import stage_rank

Output = tuple[Tensor, Tensor]
"""Losses and correctness of a rank's tokens."""


@dataclass(frozen=True)
class MicroBatch:
    """A slot on its way through the stages.

    Attributes:
        weight: factor on the sum of its losses.
        aux_scale: gradient of its experts' load-balancing losses.
    """

    batch: Batch
    weight: float
    aux_scale: float


class Pipeline:
    """The stages of one rank and the schedule that drives them.

    Args:
        model: cut for this rank, with its layers under their global numbers.
        stages: decoder layers of all stages.
    """

    def __init__(self, model: ParallelModel, stages: Sequence[range]) -> None:
        self.model = model
        self.layout = model.mesh.layout
        self.group = model.mesh.pp
        self.stages = [
            Stage(model, number, layers, len(stages))
            for number, layers in enumerate(stages)
            if stage_rank(self.layout, number) == self.group.rank
        ]
        self.count = len(stages)
        self._schedules: dict[tuple[int, int], Any] = {}

    @property
    def has_last(self) -> bool:
        """Whether this rank computes the losses."""
        return any(stage.is_last for stage in self.stages)

    def step(
        self, micros: Sequence[MicroBatch], check: Callable[[int, Tensor], None] = lambda micro, losses: None
    ) -> list[Output] | None:
        """Forward and backward of all micro-batches, whose rows have one length; gradients accumulate.

        Returns:
            Outputs of each micro-batch where the last stage is, None elsewhere.
        """
        encoded = [self.model.encode(micro.batch) for micro in micros]
        leaves = [
            {token: values.detach().requires_grad_(values.requires_grad) for token, values in media.items()}
            for media in encoded
        ]
        for stage in self.stages:
            stage.load(micros, leaves, check)
        numbers = torch.arange(len(micros), device=micros[0].batch.tokens.device)
        schedule = self._schedule(len(micros), micros[0].batch.tokens.shape[1])
        inputs = (numbers,) if any(stage.is_first for stage in self.stages) else ()
        target = numbers if self.has_last else None
        schedule.step(*inputs, target=target, return_outputs=False, number=numbers)
        for media, leaf in zip(encoded, leaves, strict=True):
            _back_through_encoders(media, leaf)
        return next((stage.outputs for stage in self.stages if stage.is_last), None)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Output | None:
        """A forward pass of one batch, stage after stage; its output where the last stage is."""
        media = self.model.encode(batch)
        micro = [MicroBatch(batch, 0.0, 0.0)]
        mine = {stage.number: stage for stage in self.stages}
        x = torch.empty(0)
        for number in range(self.count):
            here = stage_rank(self.layout, number)
            before = stage_rank(self.layout, number - 1) if number else here
            if here == self.group.rank:
                stage = mine[number]
                stage.load(micro, [media], lambda micro, losses: None)
                if before != here:
                    x = stage.empty(batch.tokens.shape[1])
                    dist.recv(x, src=self.group.ranks[before], group=self.group.handle)
                x = stage(x, number=torch.zeros(1, dtype=torch.int64))
            elif before == self.group.rank:
                dist.send(x.contiguous(), dst=self.group.ranks[here], group=self.group.handle)
        return next((stage.outputs[0] for stage in self.stages if stage.is_last), None)

    def _schedule(self, micros: int, width: int) -> Any:
        """The schedule for rows of a length: buffers between stages have fixed shapes (DeepSpeed#3195 cut to them)."""
        key = (micros, width)
        if key not in self._schedules:
            device = next(self.model.parameters()).device
            stages = [stage.wrapped(width, device, self.group.handle) for stage in self.stages]
            classes: dict[str, Any] = {
                "gpipe": ScheduleGPipe,
                "1f1b": Schedule1F1B,
                "interleaved": ScheduleInterleaved1F1B,
                "zero-bubble": ScheduleZBVZeroBubble,
            }
            argument = stages[0] if self.layout.schedule in ("gpipe", "1f1b") else stages
            loss = next((stage.loss for stage in self.stages if stage.is_last), _no_loss)
            self._schedules[key] = classes[self.layout.schedule](argument, micros, loss_fn=loss, scale_grads=False)
        return self._schedules[key]


class Stage(nn.Module):
    """Some contiguous layers of the decoder, with the embeddings before them or the head behind them."""

    def __init__(self, model: ParallelModel, number: int, layers: range, stages: int) -> None:
        super().__init__()
        # Not as a submodule: parameters belong to the model, which the engine wraps.
        self._held = (model,)
        self.number = number
        self.layers = [str(layer) for layer in layers]
        self.is_first, self.is_last = number == 0, number == stages - 1
        self.stages = stages
        self.media: Sequence[Media] = ()
        self.outputs: list[Output] = []

    @property
    def model(self) -> ParallelModel:
        return self._held[0]

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:  # type: ignore[override]
        """What the stage computes with: a zero-bubble schedule computes these gradients apart from its input's."""
        trained = self.model.trained
        layers: Any = trained.decoder.layers
        used = [layers[name] for name in self.layers]
        used += [trained.embed_tokens] if self.is_first else []
        used += [trained.decoder.norm, trained.lm_head or trained.embed_tokens] if self.is_last else []
        yield from {p: None for module in used for p in module.parameters() if p.requires_grad}
        if trained.config.attends:  # a stage behind the first looks at media too
            yield from (values for media in self.media for values in media.values() if values.requires_grad)

    def load(self, micros: Sequence[MicroBatch], media: Sequence[Media], check: Callable[[int, Tensor], None]) -> None:
        """Lays out the micro-batches of a step, which the schedule then names by number."""
        self.micros, self.media, self.check = micros, media, check
        self.outputs = []

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        """Hidden states [1, own tokens, hidden] -> the same, or losses [1, own tokens] from the last stage."""
        at = int(number)
        micro = self.micros[at]
        self.model.set_aux_scale(micro.aux_scale)
        if self.is_first:
            x = self.model.begin(micro.batch, self.media[at])
        layers: Any = self.model.trained.decoder.layers
        x = self.model.run([layers[name] for name in self.layers], x, micro.batch, self.media[at])
        if not self.is_last:
            return x
        losses, correct = self.model.end(x, micro.batch)
        self.check(at, losses)
        self.outputs.append((losses.detach(), correct))
        return losses

    def loss(self, losses: Tensor, number: Tensor) -> Tensor:
        """What the backward pass starts from."""
        return losses.sum() * self.micros[int(number)].weight

    def empty(self, width: int) -> Tensor:
        """Space for hidden states of this rank's piece of a row."""
        parameter = next(self.model.parameters())
        own = width // self.model.mesh.layout.row_multiple
        hidden = self.model.trained.config.decoder.hidden
        return torch.empty(1, own, hidden, dtype=parameter.dtype, device=parameter.device)

    def wrapped(self, width: int, device: torch.device, group: Any) -> PipelineStage:
        """For torch's schedules, with the shapes that travel between stages."""
        hidden = self.empty(width).requires_grad_()
        tokens = width // self.model.mesh.sp.size
        number = torch.zeros(1, dtype=torch.int64, device=device)
        losses = torch.empty(1, tokens, device=device).requires_grad_()
        return PipelineStage(
            self,
            self.number,
            self.stages,
            device,
            input_args=number if self.is_first else hidden,
            output_args=losses if self.is_last else hidden,
            group=group,
        )


def _no_loss(output: Tensor, target: Tensor) -> Tensor:
    raise AssertionError("only the last stage has losses")


def _back_through_encoders(media: Media, leaves: Media) -> None:
    """Gradients of media embeddings into the encoders; a collective call, to which stages without any give zeros."""
    for token, values in media.items():
        if values.requires_grad:
            gradient = leaves[token].grad
            values.backward(torch.zeros_like(values) if gradient is None else gradient)
