"""What one pass over a table finds of its columns, and a sample of its rows.

Distinct values are sketched by the `SKETCH` smallest of their 64-bit hashes (KMV, Bar-Yossef et al. 2002): exact up to
so many values, with a standard error of 1.6 % above. The sketches of two columns also tell that one cannot include the
other, which spares nearly all exact comparisons. What a sketch or the sample suggests is verified over all rows before
it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasmo.warehouse.relation import Kind, Relation, kind_of

SKETCH = 4096
SAMPLE_ROWS = 20_000
SHORT = 64
"""A text that is longer on average is no key and no dimension's name."""


@dataclass(frozen=True)
class ColumnFacts:
    """A column.

    Attributes:
        name: of it.
        kind: of all its values.
        rows: of the table.
        nulls: how many have none.
        hashes: the smallest hashes of its values, sorted.
        low, high: smallest and largest value of numbers, else None.
        length: mean length of its texts.
    """

    name: str
    kind: Kind
    rows: int
    nulls: int
    hashes: NDArray[np.uint64]
    low: float | None = None
    high: float | None = None
    length: float = 0.0

    @property
    def distinct(self) -> int:
        """Distinct values: exact below `SKETCH`, an estimate from there on."""
        if len(self.hashes) < SKETCH:
            return len(self.hashes)
        return min(self.rows - self.nulls, round((SKETCH - 1) / (float(self.hashes[-1]) / 2**64)))

    @property
    def may_name(self) -> bool:
        """Whether its values could name things: whole numbers, days and short texts do, measurements do not."""
        return self.kind in ("integer", "text", "date", "timestamp") and self.length <= SHORT

    def may_be_in(self, other: ColumnFacts) -> bool:
        """Whether the sketches allow that every value of this one is a value of the other."""
        if not len(self.hashes) or not len(other.hashes):
            return False
        seen = self.hashes if len(other.hashes) < SKETCH else self.hashes[self.hashes <= other.hashes[-1]]
        return bool(np.isin(seen, other.hashes, assume_unique=True).all())


@dataclass(frozen=True)
class TableFacts:
    """A table: its relation with the kinds known, its columns, and a sample of its rows without media."""

    relation: Relation
    columns: dict[str, ColumnFacts]
    sample: pa.Table

    @property
    def name(self) -> str:
        return self.relation.name


def table_facts(relation: Relation, seed: int = 0) -> TableFacts:
    """Reads a table twice: for the kinds of its columns, then for the rest."""
    kinds: dict[str, Kind | None] = dict.fromkeys(relation.columns)
    for batch in relation.raw(relation.columns):
        kinds = {name: kind_of(batch.column(name), kinds[name]) for name in kinds}
    relation = replace(relation, kinds={name: kind or "text" for name, kind in kinds.items()})
    light = [name for name in relation.columns if relation.kinds[name] != "bytes"]
    chosen = np.sort(np.random.default_rng(seed).choice(relation.rows, min(relation.rows, SAMPLE_ROWS), replace=False))
    facts = {name: ColumnFacts(name, relation.kinds[name], 0, 0, np.zeros(0, np.uint64)) for name in relation.columns}
    pieces, at = [], 0
    for batch in relation.read(relation.columns):
        facts = {name: _merged(facts[name], batch.column(name)) for name in facts}
        inside = chosen[(chosen >= at) & (chosen < at + batch.num_rows)] - at
        pieces.append(batch.select(light).take(pa.array(inside)))
        at += batch.num_rows
    sample = pa.concat_tables(pieces) if pieces else pa.table({name: pa.array([], pa.string()) for name in light})
    return TableFacts(relation, facts, sample)


def hashes_of(values: pa.ChunkedArray) -> NDArray[np.uint64]:
    """A 64-bit hash of each value; equal values of one kind have equal hashes. Values must not be null."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return pd.util.hash_array(np.array(values.to_pylist(), dtype=object), categorize=False)  # type: ignore[no-any-return]
    return pd.util.hash_array(values.to_numpy())  # type: ignore[no-any-return]


def hashed(relation: Relation, columns: Sequence[str]) -> Iterator[tuple[pa.Table, NDArray[np.uint64]]]:
    """The rows in which none of some columns is null, batch by batch, with a hash of each row."""
    for batch in relation.read(columns):
        kept = batch.drop_null()
        mixed = np.zeros(kept.num_rows, np.uint64)
        for name in columns:
            mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + hashes_of(kept.column(name))
        yield kept, mixed


def _merged(facts: ColumnFacts, values: pa.ChunkedArray) -> ColumnFacts:
    given = values.drop_null()
    count = facts.rows - facts.nulls
    low, high, length = facts.low, facts.high, facts.length
    if facts.kind in ("integer", "number") and len(given):
        ends = pc.min_max(given).as_py()
        low = ends["min"] if low is None else min(low, ends["min"])
        high = ends["max"] if high is None else max(high, ends["max"])
    elif pa.types.is_string(values.type) and len(given):
        length = (length * count + float(pc.sum(pc.utf8_length(given)).as_py())) / (count + len(given))
    hashes = facts.hashes
    if facts.kind != "bytes":
        fresh = hashes_of(pa.chunked_array([given.unique()], given.type))
        hashes = np.unique(np.concatenate([hashes, fresh]))[:SKETCH]
    return replace(
        facts, rows=facts.rows + len(values), nulls=facts.nulls + values.null_count, hashes=hashes, low=low, high=high,
        length=length,
    )  # fmt: skip
