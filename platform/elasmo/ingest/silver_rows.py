"""Silver rows one by one: typed and checked in a guarded process, deduplicated, placed in their split, marked."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from elasmo.config import LimitsConfig
from elasmo.content.language import language_of
from elasmo.content.picture_hash import picture_hash
from elasmo.content.text_hash import text_hash
from elasmo.data.draft import Ref, Split
from elasmo.data.manifest import Snapshot
from elasmo.ingest.guarded import Guarded, Stuck
from elasmo.ingest.near_rows import KINDS, Near, NearFound, NearRows
from elasmo.ingest.repeat import references
from elasmo.ingest.row_text import modality_of, text_of
from elasmo.sources.check import Checks
from elasmo.sources.contract import Contract, SplitRule, TableSpec
from elasmo.sources.marks import DISTANCE, LANGUAGE, MODALITY, NEAR, Kind, language_columns, near_columns
from elasmo.sources.quarantine import Refusal, RowError
from elasmo.sources.source import Row, Source
from elasmo.stages.stage_ledger import at_part


def heldout_by_hash(table: str, concept: str, fraction: float) -> bool:
    """Whether a concept falls into the held-out share: a fixed function of its name alone, even over [0, 1)."""
    digest = hashlib.blake2b(f"{table}/{concept}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < fraction


@dataclass(frozen=True)
class _Parsed:
    """A landed row as the columns of its table, or why it has none."""

    table: str
    key: str
    shard: int
    row: Row
    fault: str | None = None


@dataclass
class _Checked:
    """Typed values without media, which are as they landed; hashes of images by column; or why a row is refused."""

    values: dict[str, Any] = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)
    refused: str | None = None


@dataclass(frozen=True)
class Nearby:
    """What is near what in a table, and which rows are left out for it."""

    table: str
    key: str
    columns: tuple[str, ...]
    near: Mapping[Ref, Near]
    left_out: frozenset[str]

    def added_to(self, rows: pa.Table) -> pa.Table:
        keys = rows.column(self.key).to_pylist()
        for column in self.columns:
            found = [self.near.get(Ref(self.table, key, column)) for key in keys]
            values = {
                f"{column}{NEAR}": [None if near is None else str(near.row.row) for near in found],
                f"{column}{DISTANCE}": [None if near is None else near.distance for near in found],
            }
            for name, value in values.items():
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, rows.schema.field(place), pa.array(value, rows.schema.field(place).type))
        if self.left_out:
            rows = rows.filter(pa.array([key not in self.left_out for key in keys]))
        return rows


class RowBuilder:
    """Walks bronze tables and remembers what later rows depend on."""

    def __init__(self, bronze: Snapshot, contract: Contract, source: Source, limits: LimitsConfig) -> None:
        self.bronze = bronze
        self.contract = contract
        self.source = source
        self.checks = Checks(contract.record, limits, contract.media.sample_rate, self._seen)
        self.refusals: list[Refusal] = []
        self._places: dict[Ref, tuple[Split | None, str | None]] = {}
        self._near = NearRows(contract.near)
        self._hashes: dict[Kind, dict[Ref, Any]] = {kind: {} for kind in KINDS}
        self._pointed: dict[str, set[str]] = defaultdict(set)
        self._images: dict[str, int] = {}

    def accepted(self, table: str) -> Iterator[dict[str, Any]]:
        """Typed rows of a table that passed, in bronze order."""
        spec, rule = self.source.tables[table], self.source.splits.get(table)
        seen: dict[str, dict[str, str]] = defaultdict(dict)
        heldout = self._heldout_concepts(table, rule)
        at = -1
        for parsed, checked in self._checked(table):
            if parsed.shard != at:
                at = parsed.shard
                shard = self.bronze.shards(table)[at]
                at_part(shard["file"], shard["rows"], shard["bytes"])
            try:
                row = self._typed(spec, parsed, checked)
                _refuse_duplicate(spec, row, seen)
                row["split"], row["concept"] = self._place(table, rule, row, heldout)
            except RowError as error:
                self.refusals.append(Refusal("silver", table, parsed.key, str(error)))
                continue
            self._places[Ref(table, row[spec.key])] = row["split"], row["concept"]
            for column in (spec.key, *spec.unique):
                seen[column][digest_of(row[column])] = row[spec.key]
            self._mark(table, spec, row, checked)
            yield row
        at_part(None)

    def nearby(self, table: str) -> Nearby:
        """What of the table is near what, once all of it was accepted; the contract's action is taken."""
        spec, rules = self.source.tables[table], self.contract.near
        columns = near_columns(spec, rules)
        near: dict[Ref, Near] = {}
        left_out: set[Ref] = set()
        for kind in sorted(KINDS, key=lambda kind: getattr(rules, kind).do == "mark"):  # no mark names what is left out
            hashes, self._hashes[kind] = self._hashes[kind], {}
            found = self._near.find(kind, {ref: value for ref, value in hashes.items() if ref.row not in left_out})
            near |= found
            action = getattr(rules, kind).do
            if action == "mark":
                continue
            rows = {ref.row for ref in found} - left_out
            self._near.forget(kind, rows)
            left_out |= rows
            for ref in sorted(found, key=lambda ref: ref.key) if action == "quarantine" else ():
                if ref.row in rows:
                    rows.remove(ref.row)  # one reason a row
                    reason = f"{ref.column} is near that of row {str(found[ref].row.row)!r}; near.{kind} refuses it"
                    self.refusals.append(Refusal("silver", table, ref.key, reason))
        for row in left_out:
            del self._places[row]
        return Nearby(table, spec.key, tuple(columns), near, frozenset(row.key for row in left_out))

    def near_found(self) -> dict[str, NearFound]:
        """Near duplicates of the snapshot, once all its tables are there."""
        splits: dict[Ref, set[str]] = {ref: {split} for ref, (split, _) in self._places.items() if split is not None}
        for ref in self._places:
            if str(ref) in self._pointed:
                splits[ref] = splits.get(ref, set()) | self._pointed[str(ref)]
        return self._near.found(splits)

    def _checked(self, table: str) -> Iterator[tuple[_Parsed, _Checked]]:
        """Parsed rows with what the checks say, media decoded in a process of their own."""
        spec, seconds = self.source.tables[table], self.contract.timeouts.row_s
        rows = (self._parsed(table, spec, *landed) for landed in self._landed(table))
        if seconds is None or not any(column.type in ("image", "audio") for column in spec.columns.values()):
            yield from ((row, self._check(row)) for row in rows)
            return
        with Guarded(self._check, seconds) as guarded:
            for row, result in guarded.map(rows):
                if isinstance(result, Stuck):
                    result = _Checked(refused=f"decoding it {result.reason}")
                yield row, result

    def _parsed(self, table: str, spec: TableSpec, shard: int, landed: Row) -> _Parsed:
        key = landed.get(spec.key) or ""
        try:
            return _Parsed(table, key, shard, self.source.parse(table, landed))
        except RowError as error:
            return _Parsed(table, key, shard, {}, str(error))

    def _check(self, parsed: _Parsed) -> _Checked:
        """Checks every value of a row."""
        if parsed.fault is not None:
            return _Checked(refused=parsed.fault)
        self._images = {}
        values = {}
        try:
            for name, column in self.source.tables[parsed.table].columns.items():
                value = self.checks.value(name, column, parsed.row.get(name))
                if column.type not in ("image", "audio"):
                    values[name] = value
        except RowError as error:
            return _Checked(refused=str(error))
        return _Checked(values, self._images)

    def _seen(self, column: str, pixels: Any) -> None:
        if self.contract.near.image.do != "off":
            found = picture_hash(pixels)
            if found is not None:
                self._images[column] = found

    def _mark(self, table: str, spec: TableSpec, row: dict[str, Any], checked: _Checked) -> None:
        """Adds language and modality to a row, and notes what it is compared by and what it points at."""
        kinds = near_columns(spec, self.contract.near)
        rule = self.contract.languages
        for name in dict.fromkeys((*kinds, *language_columns(spec, rule))):
            if kinds.get(name) == "image":
                if name in checked.hashes:
                    self._hashes["image"][Ref(table, row[spec.key], name)] = checked.hashes[name]
                continue
            if row[name] is None:
                continue
            text, context = text_of(spec, name, row[name])
            if rule.tag:
                row[f"{name}{LANGUAGE}"] = language_of(text, rule.confidence)
            if name in kinds:
                found = text_hash(text, context)
                if found is not None:
                    self._hashes["text"][Ref(table, row[spec.key], name)] = found
        row.setdefault(MODALITY, modality_of(spec, row))
        if row["split"] is not None:
            for name, column in spec.columns.items():
                if column.type == "messages" and row[name] is not None:
                    for reference in references(row[name]):
                        self._pointed[reference].add(row["split"])

    def _landed(self, table: str) -> Iterator[tuple[int, Row]]:
        """(number of its shard, row); rows are read ahead of those at work, so the ledger is told of a shard later."""
        for number, shard in enumerate(self.bronze.shards(table)):
            for row in self.bronze.read_shard(shard).to_pylist():
                yield number, row

    def _typed(self, spec: TableSpec, parsed: _Parsed, checked: _Checked) -> dict[str, Any]:
        if checked.refused is not None:
            raise RowError(checked.refused)
        return {name: checked.values.get(name, parsed.row.get(name)) for name in spec.columns}

    def _heldout_concepts(self, table: str, rule: SplitRule | None) -> frozenset[str]:
        """Concepts that some row declares held out; found first, so that the order of rows does not matter."""
        if rule is None or rule.column is None or rule.concept is None:
            return frozenset()
        found = set()
        for _, landed in self._landed(table):
            try:
                row = self.source.parse(table, landed)
            except RowError:
                continue
            if row.get(rule.column) == "heldout":
                found.add(str(row.get(rule.concept)))
        return frozenset(found)

    def _place(
        self, table: str, rule: SplitRule | None, row: dict[str, Any], heldout: frozenset[str]
    ) -> tuple[Split | None, str | None]:
        if rule is None:
            return None, None
        if rule.follows is not None and rule.of is not None:
            leader = Ref(rule.of, str(row[rule.follows]))
            if leader not in self._places:
                raise RowError(f"{rule.follows} is {leader}, which was refused or never landed")
            return self._places[leader]
        concept = str(row[rule.concept or ""])
        declared: Split | None = row[rule.column] if rule.column is not None else None
        if declared == "train" and concept in heldout:
            raise RowError(f"concept {concept!r} is declared train here and held out in another row; it would leak")
        if declared is None:
            by_hash = heldout_by_hash(table, concept, rule.heldout_fraction)
            declared = "heldout" if concept in heldout or concept in rule.heldout or by_hash else "train"
        return declared, concept


def _refuse_duplicate(spec: TableSpec, row: Mapping[str, Any], seen: Mapping[str, Mapping[str, str]]) -> None:
    for column in (spec.key, *spec.unique):
        first = seen.get(column, {}).get(digest_of(row[column]))
        if first is not None:
            raise RowError(f"{column} is the same as in row {first!r}; exact duplicates are kept once")


def digest_of(value: Any) -> str:
    """Hash by which values are held equal."""
    content = value if isinstance(value, bytes) else str(value).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
