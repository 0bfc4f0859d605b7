"""Tables in memory, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from elasmo.warehouse.column_facts import TableFacts, table_facts
from elasmo.warehouse.relation import Relation


def relation(name: str, columns: Mapping[str, Sequence[Any]], batch_rows: int = 1000) -> Relation:
    """A table of some columns, read in batches."""
    table = pa.table({column: pa.array(list(values)) for column, values in columns.items()})

    def raw(wanted: Sequence[str]) -> Iterator[pa.Table]:
        for start in range(0, table.num_rows, batch_rows):
            yield table.select(list(wanted)).slice(start, batch_rows)

    return Relation(name, tuple(columns), table.num_rows, raw)


def facts(name: str, columns: Mapping[str, Sequence[Any]], batch_rows: int = 1000) -> TableFacts:
    return table_facts(relation(name, columns, batch_rows))
