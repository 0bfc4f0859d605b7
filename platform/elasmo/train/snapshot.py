"""What a rank writes of a step: its fragments, taken from the engine, as references or as copies on the host.

Copies are taken into buffers that are kept from one checkpoint to the next: fresh pages cost several times the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elasmo.model.boxes import Box
from elasmo.model.fragment_writer import Piece

Key = tuple[str, Box | None, int, str]
"""Tensor, box, start and state."""


@dataclass(frozen=True)
class Snapshot:
    """This rank's part of a checkpoint, and the full shape of every tensor that it knows."""

    pieces: tuple[Piece, ...]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


class HostBuffers:
    """Host memory for one snapshot, taken once; a new snapshot overwrites the last."""

    def __init__(self) -> None:
        self._buffers: dict[Key, Tensor] = {}

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """The same snapshot in host memory that training does not touch."""
        pieces = tuple(
            replace(
                piece,
                states={
                    state: self._copy((piece.tensor, piece.box, piece.start, state), part)
                    for state, part in piece.states.items()
                },
            )
            for piece in snapshot.pieces
        )
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return Snapshot(pieces, snapshot.shapes)

    def _copy(self, key: Key, part: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
            buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=torch.cuda.is_available())
            self._buffers[key] = buffer
        return buffer.copy_(part, non_blocking=True)
