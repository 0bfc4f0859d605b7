"""The index of a gold split: what planning needs to know of every row, as arrays, without its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODULES = ("decoder", "vision", "audio", "table")
"""Modules of the model that a row loads, in the order of a cost vector."""


@dataclass(frozen=True)
class Source:
    """The rows of one gold snapshot in an index.

    Attributes:
        name: its dataset.
        snapshot: content hash of the gold snapshot.
        first: position of its first row in the index.
        rows: number of its rows.
    """

    name: str
    snapshot: str
    first: int
    rows: int


@dataclass(frozen=True)
class GoldIndex:
    """Rows of one split in gold order, of one snapshot or of several, one after another.

    The arrays share their first dimension; integers are as narrow as their values allow.

    Attributes:
        snapshot: content hash of the gold snapshot that the rows belong to, or of the mixture.
        row_ids: int64 [rows], frozen global row ids.
        shard: int32 [rows], the Parquet shard that holds the row; rows of a shard are adjacent.
        modalities: names, indexed by `modality`.
        modality: int8 [rows].
        costs: [rows, modules], tokens each module of `MODULES` processes for the row.
        target_tokens: [rows], tokens that count in the loss.
        sources: where the rows come from, in order; one of all rows when empty.
    """

    snapshot: str
    row_ids: NDArray[np.int64]
    shard: NDArray[np.int32]
    modalities: tuple[str, ...]
    modality: NDArray[np.int8]
    costs: NDArray[np.integer[Any]]
    target_tokens: NDArray[np.integer[Any]]
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        if not self.sources:
            object.__setattr__(self, "sources", (Source("", self.snapshot, 0, len(self)),))

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        arrays = (self.row_ids, self.shard, self.modality, self.costs, self.target_tokens)
        return sum(array.nbytes for array in arrays)


def narrow(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The same whole numbers, none negative, in 16 bits where they fit: an index of many rows lies in every process."""
    small = len(values) == 0 or int(values.max()) <= np.iinfo(np.uint16).max
    return values.astype(np.uint16 if small else np.int32)
