"""What a rank writes of a step: its fragments, taken from the engine, as references or as copies on the host.

Copies are taken into buffers that are kept from one checkpoint to the next: fresh pages cost several times the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elasmo.model.boxes import Box
from elasmo.model.fragment_writer import Slice


@dataclass(frozen=True)
class Snapshot:
    """This rank's part of a checkpoint.

    Attributes:
        slices: tensor name, start in the flattened box, values of each state.
        boxes: of the tensors of which this rank holds a part.
        shapes: full shape of every tensor that this rank knows.
    """

    slices: tuple[Slice, ...]
    boxes: Mapping[str, Box]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for _, _, states in self.slices for part in states.values())


class HostBuffers:
    """Host memory for one snapshot, taken once; a new snapshot overwrites the last."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int, str], Tensor] = {}

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """The same snapshot in host memory that training does not touch."""
        slices = tuple(
            (name, start, {state: self._copy((name, start, state), part) for state, part in states.items()})
            for name, start, states in snapshot.slices
        )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return Snapshot(slices, snapshot.boxes, snapshot.shapes)

    def _copy(self, key: tuple[str, int, str], part: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
            buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=torch.cuda.is_available())
            self._buffers[key] = buffer
        return buffer.copy_(part, non_blocking=True)
