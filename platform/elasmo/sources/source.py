"""What a dataset source gives to ingestion: landed rows, and the samples made of the rows that passed the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol

from elasmo.data.draft import Draft
from elasmo.sources.contract import SplitRule, TableSpec
from elasmo.sources.quarantine import Refusal

Row = Mapping[str, Any]


class SourceError(ValueError):
    """A source that cannot be read, in a sentence that names the file and the mend."""


class SilverRows(Protocol):
    """What a source sees of the silver layer when it makes samples."""

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Typed rows in bronze order with `split` and `concept`, without media bytes."""
        ...


class Source(Protocol):
    """A dataset source. `tables` and `splits` say what it lands and how that is checked and split."""

    @property
    def tables(self) -> Mapping[str, TableSpec]: ...

    @property
    def splits(self) -> Mapping[str, SplitRule]: ...

    @property
    def code(self) -> tuple[ModuleType, ...]:
        """Modules whose code decides what lands."""
        ...

    def describe(self) -> dict[str, dict[str, str]]:
        """Everything landed rows depend on, as sha256: `files` of the folder, `inputs` from outside of it."""
        ...

    def landed(self, table: str) -> Mapping[str, bool]:
        """Columns of a table as they land; True for bytes, False for text."""
        ...

    def land(self) -> Iterator[tuple[str, Row]]:
        """(table, row) as the source has it: nothing is refused here."""
        ...

    def release(self) -> None:
        """Bronze stands: what was kept to land it may go."""
        ...

    def parse(self, table: str, row: Row) -> Row:
        """A landed row as the columns of its table, values still untyped; raises RowError."""
        ...

    def drafts(self, silver: SilverRows) -> Iterator[Draft | Refusal]:
        """The samples, in any order that is always the same; a refusal for a row of which none can be made."""
        ...


def landed_columns(spec: TableSpec) -> dict[str, bool]:
    """The columns of a table that lands as it is declared."""
    return {name: column.type in ("image", "audio") for name, column in spec.columns.items()}
