"""`elasmo star`: the proposal printed, written as SQL and JSON, and built only when accepted."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasmo.cli.main import app, mistake
from elasmo.data.manifest import SnapshotError
from elasmo.sources.source import SourceError
from tests.pets import good_rows, write_dataset
from tests.warehouse.shop import shop


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["star", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_a_database_is_proposed_and_nothing_is_built(tmp_path: Path) -> None:
    told = run(shop(tmp_path / "shop.db"))
    assert "a snowflake of 6 tables" in told and "quantity (sum), price (average)" in told
    assert "fact_order_lines(product_id) -> dim_products(id): names 100% alike" in told
    assert "parquet fact_order_lines/: one file, sorted by ordered_at" in told
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]


def test_the_sql_runs_and_acceptance_builds(tmp_path: Path) -> None:
    url = shop(tmp_path / "shop.db")
    told = run(url, "--ddl", str(tmp_path / "sql" / "star.sql"), "--accept", str(tmp_path / "out" / "star.db"))
    assert "6 tables, " in told and "counts and sums equal the source" in told
    with sqlite3.connect(":memory:") as database:
        database.executescript((tmp_path / "sql" / "star.sql").read_text())
    database.close()
    assert (tmp_path / "out" / "star.db").is_file()


def test_json_and_chosen_tables(tmp_path: Path) -> None:
    url = shop(tmp_path / "shop.db")
    tree = json.loads(run(url, "--json", "--table", "order_lines", "--without", "order_lines.country"))
    assert [table["name"] for table in tree["tables"]] == ["dim_city", "fact_order_lines"]
    assert [column["name"] for column in tree["tables"][0]["columns"]] == ["city", "country", "continent"]


def test_an_ingested_dataset_is_looked_at_in_the_lake(tmp_path: Path) -> None:
    folder, lake = write_dataset(tmp_path / "pets", *good_rows()), f"data.lake={tmp_path / 'lake'}"
    assert CliRunner().invoke(app, ["ingest", str(folder), lake, "data.vocab_size=300"]).exit_code == 0
    told = run(str(folder), lake, "--accept", str(tmp_path / "star"))
    assert "24" in told and "counts and sums equal the source" in told
    assert (tmp_path / "star" / "schema.sql").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cats"], "has no silver snapshot of dataset 'cats'"),
        (["--table", "nothing"], "has no table 'nothing'"),
        (["--without", "order_lines.nothing"], "--without 'order_lines.nothing' is no TABLE.COLUMN"),
        (["mysql://x/y"], "is a URL of mysql"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    source = [] if not words[0].startswith("--") else [shop(tmp_path / "shop.db")]
    done = CliRunner().invoke(app, ["star", *source, *words, *([f"data.lake={tmp_path}"] if not source else [])])
    assert isinstance(done.exception, SnapshotError | SourceError)
    assert sentence in (mistake(done.exception) or "")
