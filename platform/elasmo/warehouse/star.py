"""Facts and dimensions: how a few tables would stand in a warehouse, with the grain, keys and evidence of each.

A star where facts refer to dimensions, a snowflake where a dimension refers to another. It is a proposal: what it rests
on was verified over all rows, but what a table is for was read from names and shapes, and a person accepts it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow.compute as pc

from elasmo.sources.align import words
from elasmo.warehouse.column_facts import ColumnFacts, TableFacts, table_facts
from elasmo.warehouse.find_keys import Key, find_keys, looks_like_name
from elasmo.warehouse.find_references import Reference, find_references
from elasmo.warehouse.find_splits import Split, find_splits
from elasmo.warehouse.relation import Kind, Relation

Part = Literal["fact", "dimension", "bridge"]
Role = Literal["key", "reference", "measure", "time", "attribute", "media"]
PREFIX: dict[Part, str] = {"fact": "fact_", "dimension": "dim_", "bridge": "bridge_"}
NUMBERS = ("integer", "number", "decimal")
MEASURED = {
    "amount", "bytes", "cost", "count", "distance", "duration", "fee", "height", "hours", "length", "minutes", "price",
    "profit", "qty", "quantity", "revenue", "sales", "score", "seconds", "size", "tax", "total", "units", "volume",
    "weight", "width",
}  # fmt: skip
NOT_SUMMED = {
    "age", "average", "avg", "balance", "discount", "grade", "height", "level", "mean", "percent", "pct", "price",
    "rate", "rating", "ratio", "score", "share", "temperature", "width",
}  # fmt: skip
CODES = 12
"""Whole numbers of so few values, called as nothing that is measured, are codes."""
PARTITION_ROWS = 100_000
SEARCH_S = 120.0


@dataclass(frozen=True)
class StarColumn:
    """A column; `source` is its name there, `summed` whether a measure's sum means something (by its name)."""

    name: str
    source: str
    kind: Kind
    role: Role
    nullable: bool
    summed: bool | None = None


@dataclass(frozen=True)
class StarReference:
    """A foreign key."""

    columns: tuple[str, ...]
    to: str
    to_columns: tuple[str, ...]
    score: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class StarTable:
    """A table of the warehouse.

    Attributes:
        name: of it.
        part: what it is.
        source: the table whose rows it has.
        split: the deciding column where it is a dimension from inside that table, else None.
        grain: what a row is.
        rows: how many; for a dimension from inside a table an estimate above 4,096.
        columns, key, unique, references: its make.
        partition: column and period (`month`, `year`) that its Parquet files are cut by; None for one folder of files.
        sort: column that its Parquet rows are sorted by.
        score: how sure its part is, 0 to 1.
        evidence: why.
    """

    name: str
    part: Part
    source: str
    split: str | None
    grain: str
    rows: int
    columns: tuple[StarColumn, ...]
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...]
    references: tuple[StarReference, ...]
    partition: tuple[str, str] | None
    sort: str | None
    score: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Star:
    """The proposal.

    Attributes:
        tables: in an order in which a table comes after those it refers to.
        shape: star or snowflake.
        sources: columns of each source table, in their order.
        broken: likely references that a few values break.
        notes: what was not found or not searched.
    """

    tables: tuple[StarTable, ...]
    shape: Literal["star", "snowflake"]
    sources: Mapping[str, tuple[str, ...]]
    broken: tuple[Reference, ...]
    notes: tuple[str, ...]

    def table(self, name: str) -> StarTable:
        return next(table for table in self.tables if table.name == name)

    def of_source(self, source: str) -> list[StarTable]:
        """The tables that hold a source table, the one with its rows first."""
        return sorted((t for t in self.tables if t.source == source), key=lambda table: table.split is not None)


@dataclass
class _Found:
    """What is known of the source's tables."""

    facts: dict[str, TableFacts]
    keys: dict[str, list[Key]]
    references: list[Reference]
    splits: dict[str, list[Split]] = field(default_factory=dict)
    parts: dict[str, tuple[Part, float, tuple[str, ...]]] = field(default_factory=dict)

    def out(self, table: str) -> list[Reference]:
        return [found for found in self.references if found.table == table]

    def into(self, table: str) -> list[Reference]:
        return [found for found in self.references if found.to == table and found.table != table]

    def primary(self, table: str) -> tuple[str, ...]:
        """The key that others refer to most, else the best one; empty where there is none."""
        used = [found.to_columns for found in self.references if found.to == table]
        ranked = sorted(self.keys[table], key=lambda key: (-used.count(key.columns), -key.score))
        return ranked[0].columns if ranked else (used[0] if used else ())


def propose_star(
    relations: Sequence[Relation], without: Collection[str] = (), search_s: float = SEARCH_S
) -> tuple[Star, list[Relation]]:
    """A proposal, and the relations with the kinds of their columns known.

    Args:
        relations: the source's tables.
        without: `table.column`s that are to be no reference and no dimension's key.
        search_s: seconds that the search for dimensions inside tables may take.
    """
    facts = {relation.name: table_facts(relation) for relation in relations}
    keys = {name: find_keys(table) for name, table in facts.items()}
    references, broken = find_references(facts, keys)
    references = [r for r in references if not any(f"{r.table}.{column}" in without for column in r.columns)]
    found = _Found(facts, keys, references)
    notes = [f"{name} has no key of one or two columns" for name, known in keys.items() if not known]
    deadline = time.monotonic() + search_s
    for name, table in facts.items():
        named = {*found.primary(name), *(key.columns[0] for key in keys[name] if len(key.columns) == 1)}
        named |= {column for reference in found.into(name) for column in reference.to_columns}
        referring = {column for reference in found.out(name) for column in reference.columns}
        referring |= {column for column in table.columns if f"{name}.{column}" in without}
        found.splits[name], missed = find_splits(table, named, referring, deadline)
        if missed:
            notes.append(f"{name}: time was up before {len(missed)} columns were searched, the first {missed[0]}")
    largest = max((relation.rows for relation in relations), default=0)
    found.parts = {name: _part(found, name, largest) for name in facts}
    tables = _ordered([made for name in facts for made in _tables(found, name)])
    flakes = any(table.part == "dimension" and any(r.to != table.name for r in table.references) for table in tables)
    shape: Literal["star", "snowflake"] = "snowflake" if flakes else "star"
    sources = {relation.name: relation.columns for relation in relations}
    return Star(tuple(tables), shape, sources, tuple(broken), tuple(notes)), [
        table.relation for table in facts.values()
    ]


def identifier(name: str) -> str:
    """A name that needs no thought in SQL: letters, digits and underscores."""
    made = re.sub(r"\W+", "_", name).strip("_") or "column"
    return f"_{made}" if made[0].isdigit() else made


def _part(found: _Found, name: str, largest: int) -> tuple[Part, float, tuple[str, ...]]:
    """Fact, dimension or bridge, with the lead of the better score over the other, and the evidence."""
    facts, out, into = found.facts[name], found.out(name), found.into(name)
    roles = [_role(found, name, column) for column in facts.columns.values()]
    measures, times = roles.count("measure"), roles.count("time")
    share = facts.relation.rows / max(1, largest)
    links = len(out) + len(found.splits[name])
    fact = 0.35 * min(1, links / 2) + 0.25 * (measures > 0) + 0.15 * (times > 0) + 0.25 * share - 0.35 * (len(into) > 0)
    described = roles.count("attribute") / max(1, len(roles))
    dimension = 0.6 * (len(into) > 0) + 0.2 * described + 0.2 * (1 - share)
    evidence = (
        f"refers to {len(out)} tables, {len(into)} refer to it",
        f"{measures} measures, {times} times, {roles.count('attribute')} attributes",
        f"{facts.relation.rows:,} rows, the largest table has {largest:,}",
    )
    lead = round(min(1.0, 0.5 + abs(fact - dimension) / 2), 3)
    if fact < dimension:
        return "dimension", lead, evidence
    bare = len(out) >= 2 and not measures and not times and not roles.count("attribute")
    return ("bridge" if bare else "fact"), lead, evidence


def _role(found: _Found, table: str, column: ColumnFacts) -> Role:
    if column.name in found.primary(table):
        return "key"
    if any(column.name in reference.columns for reference in found.out(table)):
        return "reference"
    if any(column.name == split.key for split in found.splits.get(table, ())):
        return "reference"
    if column.kind == "bytes":
        return "media"
    if column.kind in ("date", "timestamp"):
        return "time"
    called = set(words(column.name).split())
    if column.kind in ("number", "decimal") or (column.kind == "integer" and called & MEASURED):
        return "measure"
    if column.kind == "integer" and not looks_like_name(column.name) and column.distinct > CODES:
        return "measure"
    return "attribute"


def _tables(found: _Found, name: str) -> list[StarTable]:
    """The table itself, without what moves into its dimensions, and these."""
    facts, splits, part = found.facts[name], found.splits[name], found.parts[name]
    holder = {column: split for split in splits for column in split.columns}
    names = _names(facts)
    base = [column for column in facts.columns.values() if column.name not in holder]
    links = [
        (
            r.columns,
            _name_of(found, r.to),
            tuple(_names(found.facts[r.to])[c] for c in r.to_columns),
            r.score,
            r.evidence,
        )
        for r in found.out(name)
    ]
    inner = [((s.key,), _split_name(found, s), (names[s.key],), s.score, s.evidence) for s in splits]

    def referring(own: Collection[str], but: str | None) -> tuple[StarReference, ...]:
        kept = [link for link in (*links, *inner) if set(link[0]) <= set(own) and link[1] != but]
        return tuple(
            StarReference(tuple(names[c] for c in columns), to, there, score, evidence)
            for columns, to, there, score, evidence in kept
        )

    key = tuple(found.primary(name))
    unique = {r.to_columns for r in found.references if r.to == name} - {key}
    columns = tuple(_column(found, name, c, part[0], names[c.name], nullable=c.nulls > 0) for c in base)
    moment = next((c for c in base if c.kind in ("timestamp", "date")), None)
    partition = _partition(facts, moment) if part[0] == "fact" else None
    own_key = tuple(names[c] for c in key)
    references = referring([c.name for c in base], None)
    sort = names[moment.name] if moment is not None and part[0] == "fact" else next(iter(own_key), None)
    made = [
        StarTable(
            _name_of(found, name), part[0], name, None, _grain(found, name), facts.relation.rows, columns, own_key,
            tuple(tuple(names[c] for c in columns) for columns in sorted(unique)), references,
            (names[partition[0]], partition[1]) if partition else None, sort, part[1], part[2],
        )
    ]  # fmt: skip
    for split in splits:
        held = [facts.columns[split.key], *(facts.columns[column] for column in split.columns)]
        columns = tuple(
            _column(found, name, c, "dimension", names[c.name], nullable=c.name != split.key and c.nulls > 0)
            for c in held
        )
        own, key_name = _split_name(found, split), names[split.key]
        made.append(
            StarTable(
                own, "dimension", name, split.key, f"one row for each {split.key} of {name}", split.rows, columns,
                (key_name,), (), referring([c.name for c in held], own), None, key_name, split.score, split.evidence,
            )
        )  # fmt: skip
    return made


def _column(found: _Found, table: str, column: ColumnFacts, part: Part, name: str, nullable: bool) -> StarColumn:
    role = _role(found, table, column)
    if role == "measure" and part == "dimension":
        role = "attribute"
    summed = not set(words(column.name).split()) & NOT_SUMMED if role == "measure" else None
    return StarColumn(name, column.name, column.kind, role, nullable, summed)


def _grain(found: _Found, name: str) -> str:
    key, out = found.primary(name), found.out(name)
    if not key:
        return f"rows of {name}, which nothing names"
    about = [found_.to for found_ in out if not set(found_.columns) <= set(key)]
    moment = next((c.name for c in found.facts[name].columns.values() if c.kind in ("timestamp", "date")), None)
    parts = [f"one row for each {', '.join(key)} of {name}"]
    if about and found.parts[name][0] != "dimension":
        parts.append(f"about one of {', one of '.join(dict.fromkeys(about))}")
    if moment is not None and found.parts[name][0] == "fact":
        parts.append(f"at {moment}")
    return ", ".join(parts)


def _partition(facts: TableFacts, moment: ColumnFacts | None) -> tuple[str, str] | None:
    """The period of which each has rows enough for a file of its own, from the first and last time in the sample."""
    if moment is None or moment.name not in facts.sample.column_names:
        return None
    ends = pc.min_max(facts.sample.column(moment.name)).as_py()
    if ends["min"] is None:
        return None
    first, last = (int(text[:4]) * 12 + int(text[5:7]) for text in (ends["min"], ends["max"]))
    for period, count in (("month", last - first + 1), ("year", math.ceil((last - first + 1) / 12))):
        if count > 1 and facts.relation.rows / count >= PARTITION_ROWS:
            return moment.name, period
    return None


def _name_of(found: _Found, table: str) -> str:
    return PREFIX[found.parts[table][0]] + identifier(table)


def _split_name(found: _Found, split: Split) -> str:
    """Called for the column, and for the table too where another dimension has that name."""
    noun = identifier(split.key).removesuffix("_id").removesuffix("_key") or identifier(split.key)
    others = {_name_of(found, table).lower() for table in found.facts}
    others |= {f"dim_{identifier(s.key)}".lower() for ss in found.splits.values() for s in ss if s != split}
    plain = f"dim_{noun}"
    return f"dim_{identifier(split.table)}_{noun}" if plain.lower() in others else plain


def _names(facts: TableFacts) -> dict[str, str]:
    """Identifiers of a table's columns, each once, whatever the case."""
    made: dict[str, str] = {}
    for column in facts.relation.columns:
        name, number = identifier(column), 2
        while name.lower() in {other.lower() for other in made.values()}:
            name, number = f"{identifier(column)}_{number}", number + 1
        made[column] = name
    return made


def _ordered(tables: Sequence[StarTable]) -> list[StarTable]:
    """Tables after those they refer to: dimensions first as they come, then facts."""
    made: list[StarTable] = []
    waiting: Mapping[str, StarTable] = {table.name: table for table in tables}
    while waiting:
        ready = [t for t in waiting.values() if not ({r.to for r in t.references} - {t.name}) & set(waiting)]
        made += sorted(ready, key=lambda table: table.part != "dimension")
        waiting = {name: table for name, table in waiting.items() if table not in ready}
    return made
