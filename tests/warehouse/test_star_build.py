"""An accepted star in SQLite, PostgreSQL and Parquet holds what its source held, with foreign keys on."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from elasmo.warehouse import star_build
from elasmo.warehouse.relation import Relation, database_relations
from elasmo.warehouse.star import Star, propose_star
from elasmo.warehouse.star_build import StarError, build, rows_of
from elasmo.warehouse.star_sql import ddl, quoted
from tests.sources.test_read_sql import postgres  # noqa: F401  (a fixture)
from tests.warehouse.relations import relation
from tests.warehouse.shop import shop

TABLES = ("categories", "products", "customers", "order_lines")
Made = tuple[Star, list[Relation]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def made(folder: Path) -> Made:
    return propose_star(database_relations(shop(folder / "shop.db"), folder))


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        found = database.execute(f"SELECT * FROM {table}").fetchall()
    database.close()
    return sorted(found, key=repr)


def test_sqlite_gives_every_source_table_back_row_by_row(made: Made, folder: Path) -> None:
    place = folder / "star.db"
    counts = build(*made, place)
    assert counts["fact_order_lines"] == 3000 and counts["dim_city"] == 8 and counts["dim_country"] == 5
    for table in TABLES:
        assert rows(place, table) == rows(folder / "shop.db", table)
    with sqlite3.connect(place) as database:
        database.execute("PRAGMA foreign_keys = ON")
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        assert len(database.execute("PRAGMA foreign_key_list(fact_order_lines)").fetchall()) == 3
        with pytest.raises(sqlite3.IntegrityError):
            database.execute("UPDATE fact_order_lines SET product_id = 9999")
        with pytest.raises(sqlite3.IntegrityError):
            database.execute("INSERT INTO dim_city VALUES ('Oslo', 'Norway')")
    database.close()
    assert sorted(path.name for path in folder.iterdir()) == ["shop.db", "star.db"]


def test_parquet_holds_the_same_rows_and_the_schema(made: Made, tmp_path: Path) -> None:
    star, relations = made
    fact = replace(star.table("fact_order_lines"), partition=("ordered_at", "month"))
    star = replace(star, tables=tuple(fact if t.name == fact.name else t for t in star.tables))
    build(star, relations, tmp_path / "star")
    files = sorted((tmp_path / "star" / "fact_order_lines").rglob("*.parquet"))
    assert files[0].parent.name == "ordered_at_month=2022-01" and len(files) == 24
    found = [row for file in files for row in pq.ParquetFile(file).read(use_threads=False).to_pylist()]
    assert {row["ordered_at"][:7] for row in pq.ParquetFile(files[3]).read().to_pylist()} == {"2022-04"}
    (expected,) = (list(b.to_pylist() for b in rows_of(fact, r)) for r in relations if r.name == "order_lines")
    assert sorted(map(repr, found)) == sorted(repr(row) for batch in expected for row in batch)
    assert (tmp_path / "star" / "schema.sql").read_text() == ddl(star)


def test_postgresql_takes_the_same_statements_and_rows(made: Made, folder: Path, postgres: str) -> None:  # noqa: F811
    import psycopg

    star, relations = made
    known = {found.name: found for found in relations}
    with psycopg.connect(postgres) as server:
        server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        server.execute(ddl(star))  # type: ignore[arg-type]
        for table in star.tables:
            places = ", ".join(["%s"] * len(table.columns))
            for batch in rows_of(table, known[table.source]):
                values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                server.cursor().executemany(f"INSERT INTO {quoted(table.name)} VALUES ({places})", values)  # type: ignore[arg-type]
        for name in TABLES:
            columns = ", ".join(c if c != "ordered_at" else "ordered_at::text" for c in known[name].columns)
            found = server.execute(f"SELECT {columns} FROM {name}").fetchall()  # type: ignore[arg-type]
            assert sorted(found, key=repr) == rows(folder / "shop.db", name)


def test_decimals_bytes_and_a_tree_of_rows_survive(tmp_path: Path) -> None:
    codes = [f"n{n}" for n in range(60)]
    tree = {
        "code": codes,
        "parent_code": [codes[(n + 7) // 2 + 5] if n % 9 else None for n in range(60)],  # a parent may come later
        "cost": [Decimal(n) / 100 for n in range(60)],
        "icon": [bytes([n]) for n in range(60)],
    }
    star, relations = propose_star([relation("nodes", tree)])
    (table,) = star.tables
    assert [r.to for r in table.references] == [table.name]
    assert (
        "DEFERRABLE INITIALLY DEFERRED" in ddl(star) and '"icon" BYTEA' in ddl(star) and '"cost" NUMERIC' in ddl(star)
    )
    build(star, relations, tmp_path / "tree.db")
    found = rows(tmp_path / "tree.db", "nodes")
    assert {(r[0], r[1], round(r[2], 2), r[3]) for r in found} == {
        (c, p, float(cost), icon) for c, p, cost, icon in zip(*tree.values(), strict=True)
    }
    build(star, relations, tmp_path / "tree")


@pytest.mark.parametrize("place", ["star.db", "star"])
def test_what_does_not_equal_its_source_is_not_left_there(
    made: Made, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(table: Any, found: Relation) -> Iterator[Any]:
        for batch in rows_of(table, found):
            yield batch.slice(1) if table.name == "fact_order_lines" else batch

    monkeypatch.setattr(star_build, "rows_of", losing)
    with pytest.raises(StarError, match="order_lines has 3000 rows, but 2999 came out"):
        build(*made, tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_sum_that_differs_is_refused(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubling(table: Any, found: Relation) -> Iterator[Any]:
        for batch in rows_of(table, found):
            if table.name == "fact_order_lines":
                place = batch.column_names.index("quantity")
                batch = batch.set_column(place, "quantity", [[2 * value for value in batch.column(place).to_pylist()]])
            yield batch

    monkeypatch.setattr(star_build, "rows_of", doubling)
    with pytest.raises(StarError, match=r"order_lines\.quantity sums to \d+"):
        build(*made, tmp_path / "star.db")


@pytest.mark.parametrize("place", ["star.db", "star"])
def test_what_a_killed_build_left_is_swept_by_the_next(made: Made, tmp_path: Path, place: str) -> None:
    def deadly(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            star_build._refuse_differences = deadly  # type: ignore[assignment]
            build(*made, tmp_path / place)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [f".{place}-{child}"]
    build(*made, tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == [place]


def test_a_place_that_is_taken_is_left_alone(made: Made, tmp_path: Path) -> None:
    (tmp_path / "star.db").write_text("mine")
    with pytest.raises(StarError, match=r"star\.db is there already; name another place"):
        build(*made, tmp_path / "star.db")
    assert (tmp_path / "star.db").read_text() == "mine"
