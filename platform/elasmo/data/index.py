"""The index of a gold split: what planning needs to know of every row, as arrays, without its content."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MODULES = ("decoder", "vision", "audio", "table")
"""Modules of the model that a row loads, in the order of a cost vector."""


@dataclass(frozen=True)
class GoldIndex:
    """Rows of one split in gold order; arrays share their first dimension.

    Attributes:
        snapshot: content hash of the gold snapshot that the rows belong to.
        row_ids: int64 [rows], frozen global row ids.
        shard: int32 [rows], the Parquet shard that holds the row; rows of a shard are adjacent.
        modalities: names, indexed by `modality`.
        modality: int8 [rows].
        costs: int32 [rows, modules], tokens each module of `MODULES` processes for the row.
        target_tokens: int32 [rows], tokens that count in the loss.
    """

    snapshot: str
    row_ids: NDArray[np.int64]
    shard: NDArray[np.int32]
    modalities: tuple[str, ...]
    modality: NDArray[np.int8]
    costs: NDArray[np.int32]
    target_tokens: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row_ids)
