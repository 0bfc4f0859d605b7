"""The profile of a snapshot: what its tables hold, as plain data that `profiling.py` computes.

Merging the profiles of two shards gives the profile of both: exactly for rows, nulls, minimum, maximum, mixes and
patterns, within the errors that `sketch.py` states for quantiles and distinct counts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elasmo.content.sketch import Distinct, Mix, Numbers
from elasmo.data.manifest import Layer

MIXES = {
    "split": ("split",),
    "modality": ("modality", "messages.modality"),
    "label": ("label", "answer", "messages.answer"),
    "language": ("language", "*_language"),
}
"""Columns whose mix is that of splits, modalities, labels and languages (a star is any column that ends so); any column
may have a mix beside these."""

Value = TypeVar("Value")


class ProfileError(ValueError):
    """A profile that cannot be read or merged, in one sentence."""


@dataclass(frozen=True)
class ColumnProfile:
    """A column, a field of a record (`record.age`), or what messages hold (`messages.answer`, `messages.table.age`).

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

    @property
    def distinct_values(self) -> int | None:
        """The estimate, held to the number of values; None for lists."""
        return None if self.distinct is None else min(self.distinct.estimate(), self.rows - self.nulls)

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
        """Counts of splits, modalities, labels and languages, where the table has a column of them with few values."""
        return {
            name: counts
            for name, patterns in MIXES.items()
            for pattern in patterns
            for column in fnmatch.filter(self.columns, pattern)
            if (counts := self.columns[column].mix.counts)
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


def _merged(
    left: Mapping[str, Value], right: Mapping[str, Value], merge: Callable[[Value, Value], Value]
) -> dict[str, Value]:
    """Both, `merge` where a key is in both, in the order of the left and then the right."""
    both = {key: merge(value, right[key]) if key in right else value for key, value in left.items()}
    return {**both, **{key: value for key, value in right.items() if key not in both}}
