"""References between tables: columns whose values are all values of another table's key, verified over all rows.

Inclusion alone is little evidence (the numbers 1 to 5 are in every running number), so a proposal needs a score of
`LEAST` from names, values and coverage, or to be declared by the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz import fuzz

from elasmo.measure import units
from elasmo.sources.align import words
from elasmo.warehouse.column_facts import ColumnFacts, TableFacts
from elasmo.warehouse.find_keys import Key
from elasmo.warehouse.relation import CARRIED

NAME, VALUES, COVERAGE = 0.55, 0.3, 0.15
LEAST = 0.5
GENERIC = {"id", "key", "uuid", "guid", "pk", "code", "no", "nr", "number", "name"}
NEARLY = 0.05
"""Share of values without a counterpart up to which a likely reference is reported as broken."""


@dataclass(frozen=True)
class Reference:
    """`table.columns` hold keys of `to`.

    Attributes:
        orphans: values that are no key there; a proposal has none.
        values: how many there are.
    """

    table: str
    columns: tuple[str, ...]
    to: str
    to_columns: tuple[str, ...]
    score: float
    evidence: tuple[str, ...]
    orphans: int = 0
    values: int = 0

    def __str__(self) -> str:
        return f"{self.table}({', '.join(self.columns)}) -> {self.to}({', '.join(self.to_columns)})"


def find_references(
    tables: Mapping[str, TableFacts], keys: Mapping[str, Sequence[Key]]
) -> tuple[list[Reference], list[Reference]]:
    """The references, each column in at most one and without circles; and those that a few values break."""
    likely = [*_declared(tables), *_single(tables, keys), *_double(tables, keys)]
    likely.sort(key=lambda found: (-found.score, str(found)))
    kept: list[Reference] = []
    broken: list[Reference] = []
    for found in likely:
        taken = {(other.table, column) for other in kept for column in other.columns}
        if any((found.table, column) in taken for column in found.columns) or _closes_a_circle(found, kept):
            continue
        found = _verified(tables, found)
        if not found.orphans:
            kept.append(found)
        elif found.orphans <= NEARLY * found.values:
            broken.append(found)
    repaired = {(other.table, other.columns) for other in kept}
    return kept, [found for found in broken if (found.table, found.columns) not in repaired]


def _declared(tables: Mapping[str, TableFacts]) -> list[Reference]:
    return [
        Reference(facts.name, given.columns, given.table, given.to, 1.0, ("declared by the source",))
        for facts in tables.values()
        for given in facts.relation.references
        if given.table in tables and len(given.columns) == len(given.to) <= 2
    ]


def _single(tables: Mapping[str, TableFacts], keys: Mapping[str, Sequence[Key]]) -> list[Reference]:
    found = []
    for to, candidates in keys.items():
        for name in (key.columns[0] for key in candidates if len(key.columns) == 1):
            key = tables[to].columns[name]
            for facts in tables.values():
                for column in facts.columns.values():
                    if (facts.name, column.name) == (to, name) or not _may_refer(column, key):
                        continue
                    unique = any(k.columns == (column.name,) for k in keys[facts.name])
                    if unique and facts.name == to:  # two keys of one table: no row's parent
                        continue
                    made = _scored(facts.name, column, to, key, unique)
                    if made.score >= LEAST:
                        found.append(made)
    return found


def _double(tables: Mapping[str, TableFacts], keys: Mapping[str, Sequence[Key]]) -> list[Reference]:
    """To tables that no single column names: columns of the same names, or nearly."""
    found = []
    for to, candidates in keys.items():
        pairs = [key.columns for key in candidates if len(key.columns) == 2]
        if not pairs or any(len(key.columns) == 1 for key in candidates):
            continue
        for facts in (facts for name, facts in tables.items() if name != to):
            matches = []
            for name in pairs[0]:
                key = tables[to].columns[name]
                alike = [(_alike(c.name, to, name), c.name) for c in facts.columns.values() if _may_refer(c, key)]
                matches.append(max(alike, default=(0.0, "")))
            if min(score for score, _ in matches) >= 0.8 and matches[0][1] != matches[1][1]:
                score = round(sum(score for score, _ in matches) / 2, 3)
                columns = (matches[0][1], matches[1][1])
                found.append(Reference(facts.name, columns, to, pairs[0], score, (f"names {score:.0%} alike",)))
    return found


def _may_refer(column: ColumnFacts, key: ColumnFacts) -> bool:
    return (
        column.may_name
        and CARRIED[column.kind] == CARRIED[key.kind]
        and column.distinct > 0
        and column.distinct <= 1.1 * key.distinct
        and (column.may_be_in(key) or _shares_most(column, key))
    )


def _shares_most(column: ColumnFacts, key: ColumnFacts) -> bool:
    """Whether so few of the sketched values are missing that the reference may be a broken one."""
    limit = min(column.hashes[-1], key.hashes[-1])
    seen = column.hashes[column.hashes <= limit]
    lost = len(set(seen.tolist()) - set(key.hashes.tolist()))
    return len(seen) >= 20 and lost <= 2 * NEARLY * len(seen)


def _scored(table: str, column: ColumnFacts, to: str, key: ColumnFacts, unique: bool) -> Reference:
    alike = 0.0 if unique and {column.name.lower(), key.name.lower()} <= GENERIC else _alike(column.name, to, key.name)
    dense = key.low is not None and key.high is not None and key.high - key.low + 1 <= 1.2 * key.distinct
    worth = 0.2 if dense else min(1.0, column.distinct / 3)
    coverage = min(1.0, column.distinct / max(1, key.distinct))
    evidence = [f"names {alike:.0%} alike", f"{units.percent(coverage)} of the keys are referred to"]
    if dense:
        evidence.append("the keys are a running number, in which any small number is")
    score = NAME * alike + VALUES * worth + COVERAGE * coverage
    return Reference(table, (column.name,), to, (key.name,), round(score, 3), tuple(evidence))


def _alike(column: str, table: str, key: str) -> float:
    """How alike a column is to what a reference to a table's key would be called."""
    of_table = words(table)
    singular = of_table[:-3] + "y" if of_table.endswith("ies") else of_table.removesuffix("s")
    names = {f"{noun} {words(key)}" for noun in (of_table, singular)} | {singular}
    if words(key) not in GENERIC:
        names.add(words(key))
    return max(fuzz.token_sort_ratio(words(column), name) for name in names) / 100


def _verified(tables: Mapping[str, TableFacts], found: Reference) -> Reference:
    """Counts the values that are no key; a row with a null refers to nothing."""
    held = pa.concat_tables(batch.drop_null() for batch in tables[found.to].relation.read(found.to_columns))
    keys = held.group_by(list(found.to_columns), use_threads=False).aggregate([]).rename_columns(list(found.columns))
    orphans = values = 0
    for batch in tables[found.table].relation.read(found.columns):
        given = batch.drop_null()
        values += given.num_rows
        if len(found.columns) == 1:
            there = pc.sum(pc.is_in(given.column(0), value_set=keys.column(0).combine_chunks())).as_py() or 0
            orphans += given.num_rows - there
        else:
            orphans += given.join(keys, list(found.columns), join_type="left anti", use_threads=False).num_rows
    told = f"all {values:,} values are keys there" if not orphans else f"{orphans:,} of {values:,} values are no keys"
    return replace(found, orphans=orphans, values=values, evidence=(*found.evidence, told))


def _closes_a_circle(found: Reference, kept: Sequence[Reference]) -> bool:
    """Whether a table would refer to itself through others; directly it may (a row's parent)."""
    if found.table == found.to:
        return False
    reached, waiting = set[str](), [found.to]
    while waiting:
        table = waiting.pop()
        reached.add(table)
        waiting += [other.to for other in kept if other.table == table and other.to not in reached]
    return found.table in reached
