"""Candidate keys: minimal sets of one or two columns, without nulls, in which no two rows agree; over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa

from elasmo.warehouse.column_facts import ColumnFacts, TableFacts, hashed
from elasmo.warehouse.relation import Relation

NAMES = ("id", "key", "uuid", "guid", "code", "no", "nr", "number", "pk", "sku", "isbn")
SLACK = 0.95
"""A column whose sketch counts fewer distinct values than this share of the rows is no key."""
PAIRED_COLUMNS, PAIRS = 48, 24
"""Columns that pairs are made of, and pairs that are verified, at most."""
KEPT = 4
COLLISIONS = 100
"""Hashes of 64 bits do not collide so often: among a billion rows about 0.03 pairs do."""


@dataclass(frozen=True)
class Key:
    """Columns that name a row, with a score from 0 to 1 and what speaks for it."""

    columns: tuple[str, ...]
    score: float
    evidence: tuple[str, ...]


def find_keys(facts: TableFacts) -> list[Key]:
    """The candidate keys of a table by falling score; none where rows repeat or three columns were needed."""
    rows = facts.relation.rows
    if not rows:
        return []
    whole = [c for c in facts.columns.values() if c.may_name and c.nulls == 0]
    single = [c.name for c in whole if c.distinct >= SLACK * rows and is_unique(facts.relation, [c.name])]
    found = [_key(facts, (name,)) for name in single]
    found += [_key(facts, pair) for pair in _pairs(facts, [c for c in whole if c.name not in single], len(single))]
    if facts.relation.key and facts.relation.key not in [key.columns for key in found]:
        known = all(name in facts.columns for name in facts.relation.key)
        if known and is_unique(facts.relation, facts.relation.key):
            found.append(_key(facts, facts.relation.key))
    return sorted(found, key=lambda key: (-key.score, len(key.columns), key.columns))[:KEPT]


def is_unique(relation: Relation, columns: Sequence[str]) -> bool:
    """Whether no row has a null in the columns and no two agree: by hash, and where hashes agree by value."""
    seen, count = [], 0
    for _, hashes in hashed(relation, columns):
        if len(hashes) - len(np.unique(hashes)) > COLLISIONS:
            return False
        seen.append(hashes)
        count += len(hashes)
    if count < relation.rows:
        return False
    ordered = np.sort(np.concatenate(seen)) if seen else np.zeros(0, np.uint64)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(repeated) > COLLISIONS:
        return False
    alike: list[tuple[object, ...]] = []
    for batch, hashes in hashed(relation, columns) if len(repeated) else ():
        rows = batch.filter(pa.array(np.isin(hashes, repeated)))
        alike += zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return len(set(alike)) == len(alike)


def looks_like_name(column: str) -> bool:
    """Whether a column is called as identifiers are."""
    words = column.lower().replace("-", "_").replace(".", "_").split("_")
    camel = column[-2:] in ("Id", "ID") or column[-3:] == "Key"
    return camel or words[-1] in NAMES or words[0] in ("id", "key")


def _pairs(facts: TableFacts, columns: Sequence[ColumnFacts], singles: int) -> list[tuple[str, str]]:
    """Pairs of columns that are keys while neither is one; with a single key, only of what is called as keys are."""
    rows = facts.relation.rows
    useful = [c for c in columns if c.distinct > 1 and (not singles or looks_like_name(c.name))]
    useful = sorted(useful, key=lambda c: -c.distinct)[:PAIRED_COLUMNS]
    codes = {c.name: np.unique(_strings(facts.sample.column(c.name)), return_inverse=True)[1] for c in useful}
    order = list(facts.columns)
    likely = []
    for first, second in combinations(sorted(useful, key=lambda c: order.index(c.name)), 2):
        if first.distinct * second.distinct < SLACK * rows:
            continue
        both = codes[first.name].astype(np.int64) * (len(facts.sample) + 1) + codes[second.name]
        if len(np.unique(both)) == len(both):
            likely.append((looks_like_name(first.name) + looks_like_name(second.name), (first.name, second.name)))
    likely.sort(key=lambda found: -found[0])
    return [pair for _, pair in likely[:PAIRS] if is_unique(facts.relation, pair)]


def _key(facts: TableFacts, columns: tuple[str, ...]) -> Key:
    rows = facts.relation.rows
    evidence = [f"{rows:,} rows, no two alike, none without a value"]
    score = 0.5 if len(columns) == 1 else 0.3
    named = sum(map(looks_like_name, columns)) / len(columns)
    if named:
        evidence.append("called as identifiers are")
    score += 0.25 * named
    if columns == facts.relation.key:
        score += 0.2
        evidence.append("declared by the source")
    kinds = {facts.columns[name].kind for name in columns}
    if kinds & {"date", "timestamp"} and len(columns) == 1:
        score -= 0.2
        evidence.append("times differ by chance")
    if columns[0] == facts.relation.columns[0]:
        score += 0.05
        evidence.append("the first column")
    if len(columns) == 2:
        first, second = (facts.columns[name].distinct for name in columns)
        chance = rows * (rows - 1) / 2 / max(1, first * second)
        evidence.append(f"{chance:.3g} pairs of rows would agree by chance")
        score += 0.1 if chance >= 3 else -0.15
    return Key(columns, round(max(0.0, min(1.0, score)), 3), tuple(evidence))


def _strings(values: pa.ChunkedArray) -> np.ndarray:
    return np.array([str(value) for value in values.to_pylist()])
