"""Denormalised columns, which another column decides (city -> country): found in a sample, verified over all rows.

A dependency that chance explains is none: with every two rows agreeing in a column with probability q, it would hold in
w rows that repeat a value of the deciding column with probability q^w, which must be below `CHANCE`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasmo.warehouse.column_facts import SKETCH, ColumnFacts, TableFacts
from elasmo.warehouse.find_keys import looks_like_name

CHANCE = 1e-6
REPEATS = 2.0
"""Rows of each value of a deciding column, on average and at least."""
FIRST_ROWS = 2_000
"""Of the sample, looked at first."""


@dataclass(frozen=True)
class Split:
    """A dimension that is inside a table.

    Attributes:
        table: which.
        key: the column that decides.
        columns: those that it decides and that move with it.
        rows: rows that the dimension will have.
        score: 0 to 1.
        evidence: what speaks for it.
    """

    table: str
    key: str
    columns: tuple[str, ...]
    rows: int
    score: float
    evidence: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return f"{self.table}.{self.key}"


@dataclass
class Dependencies:
    """Which columns each column decides, over all rows; `unsearched` names columns that time did not suffice for."""

    decides: dict[str, set[str]] = field(default_factory=dict)
    unsearched: tuple[str, ...] = ()


def find_splits(
    facts: TableFacts, keys: Collection[str], references: Collection[str], deadline: float
) -> tuple[list[Split], tuple[str, ...]]:
    """The dimensions inside a table, and the columns that were not searched.

    Args:
        facts: of the table.
        keys: columns that are keys or parts of the primary key.
        references: columns that are to decide nothing, such as those that refer to other tables: what one of these
            decides belongs there.
        deadline: `time.monotonic()` at which the search ends.
    """
    found = dependencies(facts, set(keys), set(references), deadline)
    return _splits(facts, found.decides, set(keys)), found.unsearched


def dependencies(facts: TableFacts, keys: set[str], references: set[str], deadline: float) -> Dependencies:
    """Dependencies between columns that are no keys."""
    codes = {
        name: np.unique(_texts(facts.sample.column(name)), return_inverse=True)[1].astype(np.int32)
        for name in facts.sample.column_names
        if name not in keys and facts.columns[name].distinct > 1
    }
    names = list(codes)
    made = Dependencies()
    if not names or not len(facts.sample):
        return made
    matrix = np.column_stack([codes[name] for name in names])
    may = [n for n, name in enumerate(names) if name not in references and may_decide(facts.columns[name])]
    pairs: list[tuple[str, str]] = []
    for place, left in enumerate(may):
        if time.monotonic() > deadline:
            made.unsearched = tuple(names[n] for n in may[place:])
            break
        few = _decided(matrix[:FIRST_ROWS], left)
        if few.any():
            decided = few.copy()
            decided[few] = _decided(np.column_stack([matrix[:, left], matrix[:, few]]), 0)[1:]
            pairs += [(names[left], names[n]) for n in np.flatnonzero(decided) if n != left]
    for left_name, right in _verified(facts, pairs, deadline):
        made.decides.setdefault(left_name, set()).add(right)
    return made


def may_decide(column: ColumnFacts) -> bool:
    """Whether a column could be the key of a dimension: it names things and each of them in several rows."""
    named = column.kind == "text" or (column.kind == "integer" and looks_like_name(column.name))
    return named and column.may_name and column.distinct * REPEATS <= column.rows - column.nulls


def _decided(codes: NDArray[np.int32], left: int) -> NDArray[np.bool_]:
    """For each column, whether rows that agree in column `left` agree in it, and chance does not explain that."""
    ordered = codes[np.argsort(codes[:, left], kind="stable")]
    same = ordered[1:, left] == ordered[:-1, left]
    repeats = int(same.sum())
    holds = ~np.any((ordered[1:] != ordered[:-1]) & same[:, None], axis=0)
    for column in np.flatnonzero(holds):
        counts = np.bincount(codes[:, column])
        q = float(np.sum((counts / len(codes)) ** 2))
        holds[column] = q < 1 and repeats * math.log(max(q, 1e-12)) < math.log(CHANCE)
    return np.asarray(holds, dtype=np.bool_)


def _verified(facts: TableFacts, pairs: list[tuple[str, str]], deadline: float) -> list[tuple[str, str]]:
    """The pairs that hold in every row: each value, and no value, of the left one with one of the right one.

    When the time is over before all rows were seen, none holds: what is not verified is not proposed.
    """
    if not pairs:
        return []
    seen: dict[tuple[str, str], pa.Table] = {}
    alive = set(pairs)
    for batch in facts.relation.read(list(dict.fromkeys(name for pair in pairs for name in pair))):
        if time.monotonic() > deadline:
            return []
        for pair in sorted(alive):
            both = batch.select(list(pair))
            rows = both if pair not in seen else pa.concat_tables([seen[pair], both])
            seen[pair] = rows.group_by(list(pair), use_threads=False).aggregate([])
            left = seen[pair].column(0)
            unnamed = pc.sum(pc.and_(pc.is_null(left), pc.is_valid(seen[pair].column(1)))).as_py()
            if unnamed or len(seen[pair]) > pc.count_distinct(left, mode="all").as_py():
                alive.discard(pair)
    return [pair for pair in pairs if pair in alive]


def _splits(facts: TableFacts, decides: Mapping[str, set[str]], keys: set[str]) -> list[Split]:
    """One dimension for each deciding column; what one decides through another belongs to the other."""
    chosen = {name: set(columns) for name, columns in decides.items()}
    for name in sorted(chosen, key=lambda name: _as_key(facts, name)):
        for other in [other for other in chosen.get(name, ()) if name in chosen.get(other, ())]:
            del chosen[other]  # each decides the other: they are one thing, and `name` names it better
    made, taken = [], set[str]()
    for name in sorted(chosen, key=lambda name: (facts.columns[name].distinct, name)):
        through = {column for other in chosen[name] if other in chosen for column in chosen[other]}
        own = [c for c in facts.relation.columns if c in chosen[name] - through - taken and c not in keys]
        if not own:
            continue
        taken |= set(own)
        column = facts.columns[name]
        repeats = (column.rows - column.nulls) / max(1, column.distinct)
        about = "" if len(column.hashes) < SKETCH else "about "
        evidence = (
            f"each of {about}{column.distinct:,} values has one {', one '.join(own)} in all {column.rows:,} rows",
            f"a value is repeated in {repeats:.1f} rows on average",
        )
        score = min(1.0, 0.4 + 0.15 * math.log10(repeats) + 0.1 * len(own) + 0.1 * looks_like_name(name))
        made.append(Split(facts.name, name, tuple(own), column.distinct, round(score, 3), evidence))
    return made


def _as_key(facts: TableFacts, name: str) -> tuple[bool, bool, float, int]:
    column = facts.columns[name]
    return (not looks_like_name(name), column.kind != "integer", column.length, facts.relation.columns.index(name))


def _texts(values: pa.ChunkedArray) -> NDArray[np.str_]:
    return np.array(["\0" if value is None else str(value) for value in values.to_pylist()])
