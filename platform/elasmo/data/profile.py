"""The profile of a snapshot: what its tables hold, computed shard by shard in one pass and merged.

Merging the profiles of two shards gives the profile of both: exactly for rows, nulls, minimum, maximum, mixes and
patterns, within the errors that `sketch.py` states for quantiles and distinct counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasmo.data.manifest import Layer, Snapshot
from elasmo.data.media_header import read_header
from elasmo.data.sketch import Distinct, Mix, Numbers
from elasmo.data.text_pattern import count_patterns

MESSAGES = "messages"
UNREADABLE = "unreadable"
MIXES = {
    "split": ("split",),
    "modality": ("modality", "messages.modality"),
    "label": ("label", "answer", "messages.answer"),
}
"""Columns whose mix is that of splits, modalities and labels; any column may have a mix beside these."""

Value = TypeVar("Value")


class ProfileError(ValueError):
    """A profile that cannot be read or merged, in one sentence."""


@dataclass(frozen=True)
class ColumnProfile:
    """A column, or a field of a record (`record.age`), or a part of messages (`messages.answer`).

    Attributes:
        type: its Arrow type.
        rows: values and nulls.
        nulls: nulls.
        distinct: how many values differ, None for lists.
        mix: counts of each value of a column of few values.
        facets: distributions: `value` of numbers, `characters` of text, `items` of lists; `width`, `height` and
            `bytes` of images, `seconds`, `rate_hz` and `bytes` of sounds, both from the header alone.
        found: texts that hold a pattern, or media of each format, `unreadable` among them.
    """

    type: str
    rows: int = 0
    nulls: int = 0
    distinct: Distinct | None = None
    mix: Mix = field(default_factory=Mix)
    facets: Mapping[str, Numbers] = field(default_factory=dict)
    found: Mapping[str, int] = field(default_factory=dict)

    @property
    def null_share(self) -> float:
        return self.nulls / self.rows if self.rows else 0.0

    def found_shares(self) -> dict[str, float]:
        """Share of the values (not of the nulls) that hold each pattern or are of each format."""
        values = max(1, sum(self.found.values()) if "bytes" in self.facets else self.rows - self.nulls)
        return {name: count / values for name, count in self.found.items()}

    def merge(self, other: ColumnProfile) -> ColumnProfile:
        if self.type != other.type:
            raise ProfileError(f"A column is {self.type} in one shard and {other.type} in another; nothing can merge.")
        return ColumnProfile(
            self.type,
            self.rows + other.rows,
            self.nulls + other.nulls,
            self.distinct.merge(other.distinct) if self.distinct and other.distinct else None,
            self.mix.merge(other.mix),
            _merged(self.facets, other.facets, Numbers.merge),
            _merged(self.found, other.found, int.__add__),
        )

    def to_json(self) -> dict[str, Any]:
        facets = {name: numbers.to_json() for name, numbers in self.facets.items()}
        distinct = None if self.distinct is None else self.distinct.to_json()
        made = {"distinct": distinct, "mix": self.mix.to_json(), "facets": facets, "found": dict(self.found)}
        return {**vars(self), **made}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> ColumnProfile:
        distinct = None if tree["distinct"] is None else Distinct.from_json(tree["distinct"])
        facets = {name: Numbers.from_json(numbers) for name, numbers in tree["facets"].items()}
        return cls(**{**tree, "distinct": distinct, "mix": Mix.from_json(tree["mix"]), "facets": facets})


@dataclass(frozen=True)
class TableProfile:
    """A table: its rows, its declared columns and types, and what they hold; without rows, `columns` is empty."""

    rows: int = 0
    schema: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)

    def merge(self, other: TableProfile) -> TableProfile:
        if self.rows and other.rows and self.schema != other.schema:
            raise ProfileError("Shards of one table have different columns; delete the snapshot and ingest again.")
        columns = _merged(self.columns, other.columns, ColumnProfile.merge)
        return TableProfile(self.rows + other.rows, self.schema or other.schema, columns)

    def mixes(self) -> dict[str, Mapping[str, int]]:
        """Counts of splits, modalities and labels, where the table has a column of them with few values."""
        return {
            name: counts
            for name, columns in MIXES.items()
            for column in columns
            if column in self.columns and (counts := self.columns[column].mix.counts)
        }

    def to_json(self) -> dict[str, Any]:
        columns = {name: column.to_json() for name, column in self.columns.items()}
        return {"rows": self.rows, "schema": dict(self.schema), "columns": columns}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> TableProfile:
        columns = {name: ColumnProfile.from_json(column) for name, column in tree["columns"].items()}
        return cls(tree["rows"], tree["schema"], columns)


@dataclass(frozen=True)
class Profile:
    """All tables of a snapshot, or of some shards of it."""

    dataset: str
    layer: Layer
    snapshot: str
    tables: Mapping[str, TableProfile]

    def merge(self, other: Profile) -> Profile:
        return Profile(self.dataset, self.layer, self.snapshot, _merged(self.tables, other.tables, TableProfile.merge))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tables": {name: table.to_json() for name, table in self.tables.items()}}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Profile:
        return cls(
            **{**tree, "tables": {name: TableProfile.from_json(table) for name, table in tree["tables"].items()}}
        )


def profile_snapshot(snapshot: Snapshot) -> Profile:
    """Reads every shard once, holding one at a time.

    Raises:
        SnapshotError: a shard that is absent or differs from its manifest.
    """
    tables = {}
    for name, entry in snapshot.manifest["tables"].items():
        table = TableProfile()
        for shard in snapshot.read(name):
            table = table.merge(profile_table(shard))
        # As declared: Parquet reads a `list<item: T>` back as a `list<element: T>`, and a table may have no shard.
        tables[name] = replace(table, schema={column["name"]: column["type"] for column in entry["schema"]})
    return Profile(snapshot.manifest["dataset"], snapshot.manifest["layer"], snapshot.id, tables)


def profile_table(rows: pa.Table) -> TableProfile:
    """The profile of the rows of one shard, or of any Arrow table."""
    schema = {column.name: str(column.type) for column in rows.schema}
    return TableProfile(rows.num_rows, schema, {name: profile_column(values) for name, values in unfold(rows)})


def unfold(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Columns by name; a struct as its fields, and conversations of silver with what they ask about and answer."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_struct(column.type):
            yield name, column
        for position in range(column.type.num_fields if pa.types.is_struct(column.type) else 0):
            yield f"{name}.{column.type.field(position).name}", pc.struct_field(column, position)
        if name == MESSAGES and "answer" not in rows.column_names and pa.types.is_string(column.type):
            told = [(None, None) if text is None else _told(text) for text in column.to_pylist()]
            for position, part in enumerate(("modality", "answer")):
                yield f"{name}.{part}", pa.chunked_array([[row[position] for row in told]], pa.string())


def profile_column(values: pa.ChunkedArray) -> ColumnProfile:
    """The profile of one column; structs have to be unfolded before."""
    kind, given = values.type, values.drop_null()
    rows, nulls = len(values), values.null_count
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = given.to_numpy()
        distinct, mix = np.unique(numbers, return_counts=True), Mix(None)
        if pa.types.is_integer(kind):
            mix = Mix.of_counts({str(value): int(count) for value, count in zip(*distinct, strict=True)})
        names = map(str, distinct[0].tolist())
        return ColumnProfile(str(kind), rows, nulls, Distinct.of(names), mix, {"value": Numbers.of(numbers)})
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        media = given.to_pylist()
        distinct_media = Distinct.of({hashlib.blake2b(file, digest_size=16).hexdigest() for file in media})
        return ColumnProfile(str(kind), rows, nulls, distinct_media, Mix(None), *_media(media))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        facets = {"items": Numbers.of(pc.list_value_length(given).to_numpy())}
        inside, found = _media(pc.list_flatten(given).to_pylist()) if pa.types.is_binary(kind.value_type) else ({}, {})
        return ColumnProfile(str(kind), rows, nulls, None, Mix(None), {**facets, **inside}, found)
    texts = [str(value) for value in given.to_pylist()]
    lengths = {"characters": Numbers.of(np.array([len(text) for text in texts], dtype=np.int64))}
    return ColumnProfile(str(kind), rows, nulls, Distinct.of(texts), Mix.of(texts), lengths, count_patterns(texts))


def _media(files: Sequence[bytes]) -> tuple[dict[str, Numbers], dict[str, int]]:
    """Facets of the headers of encoded files, and files of each format."""
    measured: dict[str, list[float]] = {name: [] for name in ("width", "height", "seconds", "rate_hz")}
    formats: Counter[str] = Counter()
    for file in files:
        header = read_header(file)
        formats[UNREADABLE if header is None else header.format] += 1
        for name, value in ({} if header is None else vars(header)).items():
            if name in measured:
                measured[name].append(value)
    facets = {name: Numbers.of(np.array(values)) for name, values in measured.items() if values}
    sizes = {"bytes": Numbers.of(np.array([len(file) for file in files], dtype=np.int64))}
    return {**facets, **sizes}, dict(sorted(formats.items()))


def _told(text: str) -> tuple[str | None, str | None]:
    """Modality and answer of a conversation in silver's JSON; None for both where it is none."""
    try:
        turns = json.loads(text)
        segments = [segment for turn in turns for segment in turn["segments"]]
        kinds = {kind for segment in segments for kind in segment}
        answer = "".join(segment["text"] for segment in turns[-1]["segments"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None, None
    return "+".join(kind for kind in ("image", "audio", "table") if kind in kinds) or "text", answer


def _merged(
    left: Mapping[str, Value], right: Mapping[str, Value], merge: Callable[[Value, Value], Value]
) -> dict[str, Value]:
    """Both, `merge` where a key is in both, in the order of the left and then the right."""
    both = {key: merge(value, right[key]) if key in right else value for key, value in left.items()}
    return {**both, **{key: value for key, value in right.items() if key not in both}}
