"""The quarantine: rows that a layer refused, each with its table, bronze key and reason, kept as a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from elasmo.data.manifest import Layer, Snapshot, SnapshotWriter, open_snapshot

TABLE = "rows"
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|(?<!\S)[^\s/]+/[^\s,]+|\d+(?:[.x]\d+)*")  # quoted, a path, a figure
SCHEMA = pa.schema([("refused_by", pa.string()), ("table", pa.string()), ("key", pa.string()), ("reason", pa.string())])


class RowError(ValueError):
    """Why a row is refused: one sentence, kept in the quarantine."""


@dataclass(frozen=True)
class Refusal:
    """A refused row.

    Attributes:
        refused_by: the layer that it would have become part of.
        table: bronze table; `samples` for a sample that could not be encoded.
        key: bronze row key, or the sample's key.
        reason: one sentence.
    """

    refused_by: Layer
    table: str
    key: str
    reason: str

    @property
    def kind(self) -> str:
        """Table and head of the reason; what names one row or measures it is left out, so that kinds can be counted."""
        return f"{self.table}: {_PARTICULARS.sub('…', self.reason.split(';')[0])}"


def write_quarantine(lake: Path, dataset: str, parent: Snapshot, refusals: Iterable[Refusal]) -> str | None:
    """Snapshot id of the refused rows of one step, None when nothing was refused."""
    rows = [vars(refusal) for refusal in refusals]
    if not rows:
        return None
    with SnapshotWriter(lake, dataset, "quarantine", [parent.parent]) as writer:
        writer.add(TABLE, pa.Table.from_pylist(rows, SCHEMA))
    return writer.snapshot.id


def read_quarantine(lake: Path, dataset: str, snapshot: str | None) -> list[Refusal]:
    """The refused rows of a snapshot; none for None.

    Raises:
        SnapshotError: the snapshot is absent or damaged.
    """
    if snapshot is None:
        return []
    return [Refusal(**row) for row in open_snapshot(lake, dataset, "quarantine", snapshot).read_all(TABLE).to_pylist()]
