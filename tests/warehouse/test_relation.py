"""Tables of snapshots and databases by columns, and the kind that all values of a column have."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasmo.config import Config
from elasmo.data.manifest import open_snapshot
from elasmo.ingest.ingest import ingest
from elasmo.sources.source import SourceError
from elasmo.warehouse import relation
from elasmo.warehouse.column_facts import table_facts
from elasmo.warehouse.relation import Relation, _array, database_relations, kind_of, snapshot_relations, spooled


@pytest.mark.parametrize(
    ("batches", "kind"),
    [
        ([["1", "-20", None], ["0"]], "integer"),
        ([["1"], ["2.5"]], "number"),
        ([["01"]], "text"),
        ([["1"], ["one"]], "text"),
        ([["one"], ["1"]], "text"),
        ([["12345678901234567890"]], "text"),
        ([["2024-02-29"], [None]], "date"),
        ([["2024-02-30"]], "text"),
        ([["2024-02-29 10:00:00", "2024-02-29T10:00:00.5"]], "timestamp"),
        ([["2024-02-29 10:00:00Z"]], "text"),
        ([[1, 2], [0.5]], "number"),
        ([[Decimal("1.20")], [3]], "decimal"),
        ([[True, None]], "boolean"),
        ([[b"x"]], "bytes"),
        ([["x"], [b"x", "y"]], "bytes"),
        ([[b"x"], ["1"]], "bytes"),
        ([[None]], None),
        ([[1, "x"], [2]], "text"),
    ],
)
def test_a_kind_is_that_of_all_values(batches: list[list[Any]], kind: str | None) -> None:
    found: Any = None
    for values in batches:
        found = kind_of(pa.chunked_array([_array(values)]), found)
    assert found == kind


def test_a_column_of_mixed_types_is_read_as_text(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE t (a, b DECIMAL, c)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", [(1, 2, "x"), ("two", 2.5, None), (None, 3, "y")])
    (found,) = database_relations(f"sqlite:///{tmp_path}/a.db", tmp_path)
    facts = table_facts(found)
    assert facts.relation.kinds == {"a": "text", "b": "number", "c": "text"}
    (batch,) = facts.relation.read(["b", "a"])
    assert batch.to_pydict() == {"b": [2.0, 2.5, 3.0], "a": ["1", "two", None]}
    assert [c.nulls for c in facts.columns.values()] == [1, 0, 1]


def test_what_a_database_declares_is_known(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE p (x INTEGER, y TEXT, PRIMARY KEY (x, y))")
        database.execute("CREATE TABLE c (x INTEGER, y TEXT, FOREIGN KEY (x, y) REFERENCES p (x, y))")
    c, p = database_relations(f"sqlite:///{tmp_path}/a.db", tmp_path)
    assert p.key == ("x", "y") and [(r.columns, r.table, r.to) for r in c.references] == [(("x", "y"), "p", ("x", "y"))]
    with pytest.raises(SourceError, match=r"has no table 'q'; its tables are c, p\."):
        database_relations(f"sqlite:///{tmp_path}/a.db", tmp_path, ["q"])
    (tmp_path / "b.db").write_bytes(b"no database" * 100)
    with pytest.raises(SourceError, match="file is not a database"):
        database_relations(f"sqlite:///{tmp_path}/b.db", tmp_path)


def test_a_spooled_table_holds_what_it_held_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relation, "BATCH_ROWS", 2)
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE t (a, b)")
        database.executemany("INSERT INTO t VALUES (?, ?)", [(1, "x"), (2, None), ("three", b"z")])
    (found,) = database_relations(f"sqlite:///{tmp_path}/a.db", tmp_path)
    kept = spooled(found, tmp_path / "spool")
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("DELETE FROM t")
    assert kept.rows == 3 and table_facts(kept).relation.kinds == {"a": "text", "b": "bytes"}
    assert [v for batch in table_facts(kept).relation.read(["a"]) for v in batch["a"].to_pylist()] == [
        "1",
        "2",
        "three",
    ]
    assert [v for batch in table_facts(kept).relation.read(["b"]) for v in batch["b"].to_pylist()] == [b"x", None, b"z"]


def test_tables_of_a_snapshot_have_their_own_columns(pets: Path, config: Config) -> None:
    bronze, silver, _ = ingest(config, pets).layers
    for layer, snapshot in (("bronze", bronze), ("silver", silver)):
        opened = open_snapshot(Path(config.data.lake), "pets", layer, snapshot.snapshot)  # type: ignore[arg-type]
        found = {table.name: table for table in snapshot_relations(opened)}
        assert set(found) == {"images", "audio", "rows"} and found["rows"].rows == 24
        assert "concept" not in found["images"].columns and "landing fault" not in found["images"].columns
        assert sum(len(batch) for batch in table_facts(found["rows"]).relation.read([found["rows"].columns[0]])) == 24


def test_a_table_without_rows_has_columns_of_text() -> None:
    facts = table_facts(Relation("t", ("a", "b"), 0, lambda columns: iter(())))
    assert facts.relation.kinds == {"a": "text", "b": "text"} and facts.columns["a"].distinct == 0
