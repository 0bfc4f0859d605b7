"""SQL: chunks by key, a killed copy goes on at its last whole chunk, and what the database counts is what lands."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasmo.sources import chunked_copy
from elasmo.sources.chunked_copy import ChunkedCopy, Progress, chained
from elasmo.sources.source import SourceError
from elasmo.sources.tables import TablesSource
from tests.sources.twelve import bronze, contract, ingested, landed, refused, rows, source, twelve

ORIGIN = {"format": "sql", "url": "sqlite:///pets.db", "table": "pets", "key": "key", "chunk_rows": 5}
CREATE = "CREATE TABLE pets (key TEXT, picture BLOB, caption TEXT, number REAL, species TEXT)"


def fill(folder: Path, rows: list[dict[str, Any]], create: str = CREATE) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pets.db").unlink(missing_ok=True)
    with sqlite3.connect(folder / "pets.db") as database:
        database.execute(create)
        database.executemany("INSERT INTO pets VALUES (?, ?, ?, ?, ?)", [tuple(row.values()) for row in rows])


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    fill(tmp_path / "pets", twelve()[::-1])
    return contract(tmp_path / "pets", ORIGIN)


def copy_of(folder: Path) -> ChunkedCopy:
    (database,) = source(folder)._databases.values()
    return database.copy


def killed(folder: Path, after_writes: int) -> Progress:
    """What stands after a process that copied was killed behind its n-th write; a chunk takes two."""
    write, left = chunked_copy._write, after_writes

    def deadly(path: Path, content: bytes) -> None:
        nonlocal left
        write(path, content)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            chunked_copy._write = deadly  # type: ignore[assignment]
            source(folder).describe()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return copy_of(folder).progress()


@pytest.mark.parametrize(("writes", "chunks"), [(2, 1), (3, 1), (4, 2), (6, 3)])
def test_a_killed_copy_goes_on_behind_its_last_whole_chunk(
    pets: Path, tmp_path: Path, writes: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "other" / "pets"
    shutil.copytree(pets, whole)
    expected = source(whole).describe()["inputs"]

    stands = killed(pets, writes)
    assert (stands.chunks, stands.rows) == (chunks, min(5 * chunks, 12))
    opened, asked = source(pets), list[str]()
    land = opened._from_database
    monkeypatch.setattr(opened, "_from_database", lambda table, row, key: (asked.append(key), land(table, row, key))[1])
    assert opened.describe()["inputs"] == expected
    assert asked == [row["key"] for row in landed()[5 * chunks :]]
    opened._databases["pets"].copy.unlock()
    assert rows(bronze(pets)) == landed()


def test_a_copy_is_gone_once_bronze_stands_and_a_changed_row_lands(pets: Path, tmp_path: Path) -> None:
    first, _ = ingested(pets)
    assert list((tmp_path / "lake/pets/copies").iterdir()) == []
    with sqlite3.connect(pets / "pets.db") as database:
        database.execute("UPDATE pets SET caption = 'changed' WHERE key = 'r01'")
    second, _ = ingested(pets)
    assert first.layers[0].snapshot != second.layers[0].snapshot
    assert not second.layers[0].reused


def test_the_manifest_holds_rows_and_checksum_and_no_chunk_size_changes_it(pets: Path) -> None:
    inputs = []
    for size in (1, 5, 6, 12, 100):
        contract(pets, {**ORIGIN, "chunk_rows": size})
        inputs.append(bronze(pets).details["inputs"])
    expected = chained(Progress().checksum, [{**row, "landing fault": None} for row in landed()])
    assert inputs == [{"sqlite:///pets.db#pets (12 rows)": expected}] * 5


def test_a_query_lands_renamed_columns(pets: Path) -> None:
    query = "SELECT key AS id, picture, caption || '!' AS Words, number, species FROM pets WHERE number >= 1; "
    origin = {**ORIGIN, "table": None, "query": query, "key": "id", "chunk_rows": 3, "rename": {"Words": "caption"}}
    found = rows(bronze(contract(pets, origin)))
    assert [row["key"] for row in found] == [row["key"] for row in twelve() if row["number"] >= 1]
    assert {row["caption"] for row in found} == {f"{row['caption']}!" for row in twelve() if row["number"] >= 1}


@pytest.mark.parametrize(
    ("keys", "size", "sentence"),
    [
        (["a", "a", "b"], 5, r"from\.pets\.key: column 'key' of sqlite:///pets\.db#pets has a value twice"),
        (["a", "b", "b"], 2, r"counts 3 rows, but 2 were copied; ingest again while nothing writes to it"),
        (["a", None, "b"], 5, "is null in a row; name a column that is unique and never null"),
        ([b"a", b"b"], 5, "holds bytes; keys may be int, str, float"),
    ],
)
def test_a_key_that_names_no_row_is_refused(tmp_path: Path, keys: list[Any], size: int, sentence: str) -> None:
    fill(tmp_path / "pets", [{**row, "key": key} for row, key in zip(twelve(), keys, strict=False)])
    folder = contract(tmp_path / "pets", {**ORIGIN, "chunk_rows": size})
    with pytest.raises(SourceError, match=sentence):
        bronze(folder)
    with pytest.raises(SourceError, match=sentence):  # nothing of the failed copy is in the way
        bronze(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"url": "sqlite:///gone.db"}, r"gone\.db does not exist; restore the file"),
        ({"url": "sqlite:///../pets.db"}, "leaves the dataset's folder; name its absolute path"),
        ({"url": "postgresql://me:secret@localhost/x"}, r"from\.pets\.url holds a password; leave it out"),
        ({"url": "mysql://me@localhost/x"}, "is a URL of mysql; it must be one of sqlite, postgresql"),
        ({"url": "nonsense"}, r"from\.pets\.url is no database URL; give sqlite:///file\.db or"),
        ({"table": "cats"}, r"sqlite:///pets\.db#cats cannot be read \(no such table: cats\)"),
        ({"key": "Id"}, "has no column 'Id'; its columns are key, picture, caption, number, species"),
        ({"rename": {"Kind": "species"}}, "has no column 'Kind'"),
        ({"table": None, "query": "DELETE FROM pets"}, "cannot be read"),
        ({"table": None, "query": "SELECT 1 AS key; DROP TABLE pets"}, "cannot be read"),
    ],
)
def test_a_fault_of_the_origin_is_a_sentence_and_writes_nothing(
    pets: Path, change: dict[str, Any], sentence: str
) -> None:
    before = (pets / "pets.db").read_bytes()
    with pytest.raises(SourceError, match=sentence):
        bronze(contract(pets, {**ORIGIN, **change}))
    assert (pets / "pets.db").read_bytes() == before


def test_a_damaged_database_is_a_sentence(pets: Path) -> None:
    (pets / "pets.db").write_bytes(b"no database" * 200)
    with pytest.raises(SourceError, match=r"cannot be read \(file is not a database\)"):
        bronze(pets)


def test_a_row_of_bad_text_or_wrong_type_is_quarantined_and_the_rest_lands(tmp_path: Path) -> None:
    broken = twelve()
    fill(tmp_path / "pets", broken)
    with sqlite3.connect(tmp_path / "pets/pets.db") as database:
        database.execute("UPDATE pets SET caption = CAST(x'ff41' AS TEXT) WHERE key = 'r01'")
        database.execute("UPDATE pets SET picture = 'cat.png' WHERE key = 'r02'")
        database.execute("UPDATE pets SET number = NULL WHERE key = 'r03'")
    result, _ = ingested(contract(tmp_path / "pets", ORIGIN))
    assert refused(result) == {
        "r01": "pets:r01: caption is not valid UTF-8 text",
        "r02": "pets:r02: picture is a text; here it must be the bytes of a file",
        "r03": "number is missing",
    }
    assert result.counts["silver"] == {"pets": 9}


def test_two_processes_do_not_write_one_copy(pets: Path) -> None:
    first, second = source(pets), source(pets)
    first.describe()
    with pytest.raises(SourceError, match="another process is copying it into this lake"):
        second.describe()
    first.release()
    assert len(second.describe()["inputs"]) == 1


def server_folder() -> str | None:
    """Where PostgreSQL's programs are, None when there are none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return str(folders[-1]) if folders and (folders[-1] / "pg_ctl").exists() else None


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a server of its own, run by a user who is not root."""
    programs = server_folder()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed: initdb is neither on PATH nor in /usr/lib/postgresql")
    user = "nobody" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="elasmo-pg-"))
    if user is not None:
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    data = str(folder / "data")

    def run(program: str, *arguments: str) -> None:
        command = [f"{programs}/{program}", "-D", data, *arguments]
        done = subprocess.run(
            command, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    try:
        run("initdb", "-U", "elasmo", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        yield f"postgresql://elasmo@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [f"{programs}/pg_ctl", "-D", data, "-m", "immediate", "stop"], user=user, check=False, cwd=folder
        )
        shutil.rmtree(folder, ignore_errors=True)


def fill_server(url: str, create: str, rows: list[dict[str, Any]]) -> None:
    import psycopg

    with psycopg.connect(url) as server:
        server.execute("DROP TABLE IF EXISTS pets")
        server.execute(create)
        for row in rows:
            server.execute("INSERT INTO pets VALUES (%s, %s, %s, %s, %s)", tuple(row.values()))


@pytest.mark.parametrize("kind", ["text", "integer", "numeric", "uuid", "timestamptz", "date"])
def test_postgresql_lands_the_same_rows_after_a_kill_by_keys_of_every_type(
    postgres: str, tmp_path: Path, kind: str
) -> None:
    keys = {
        "text": "{0:02d} Ä'%",
        "integer": "{0}",
        "numeric": "{0}.25",
        "uuid": "00000000-0000-0000-0000-0000000000{0:02d}",
        "timestamptz": "2024-03-01 12:{0:02d}:00.5+00",
        "date": "2024-03-{1:02d}",
    }
    wanted = [{**row, "key": keys[kind].format(n, n + 1)} for n, row in enumerate(twelve())]
    create = f"CREATE TABLE pets (key {kind}, picture bytea, caption text, number float8, species varchar(9))"
    fill_server(postgres, create, wanted[::-1])
    folder = contract(tmp_path / "pets", {**ORIGIN, "url": postgres, "table": "public.pets"})
    assert killed(folder, 4).rows == 10
    snapshot = bronze(folder)
    found = rows(snapshot)
    assert sorted(row["caption"] for row in found) == sorted(row["caption"] for row in wanted)
    assert len({row["key"] for row in found}) == 12
    if kind in ("text", "integer", "numeric", "uuid", "date"):
        assert {row["key"] for row in found} == {row["key"] for row in wanted}
    assert [row["picture"] for row in sorted(found, key=lambda r: float(r["number"]))] == [
        r["picture"] for r in twelve()
    ]
    assert next(iter(snapshot.details["inputs"])) == f"{postgres}#public.pets (12 rows)"


def test_postgresql_reaches_gold_and_refuses_to_write(postgres: str, tmp_path: Path) -> None:
    create = "CREATE TABLE pets (key text PRIMARY KEY, picture bytea, caption text, number numeric, species text)"
    fill_server(postgres, create, twelve())
    folder = contract(tmp_path / "pets", {**ORIGIN, "url": postgres})
    result, _ = ingested(folder)
    assert result.refused == () and sum(sum(m.values()) for m in result.modalities.values()) == 12
    query = "WITH gone AS (DELETE FROM pets RETURNING *) SELECT * FROM gone"
    with pytest.raises(SourceError, match="cannot be read"):
        bronze(contract(folder, {**ORIGIN, "url": postgres, "table": None, "query": query}))
    again, _ = ingested(contract(folder, {**ORIGIN, "url": postgres}))
    assert again.counts["bronze"] == {"pets": 12}


def test_a_server_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    folder = contract(tmp_path / "pets", {**ORIGIN, "url": "postgresql://me@127.0.0.1:1/x"})
    with pytest.raises(SourceError, match=r"postgresql://me@127\.0\.0\.1:1/x#pets cannot be read \(connection"):
        bronze(folder)


@pytest.mark.parametrize("chunk", [0, 2])
def test_a_damaged_copy_is_a_sentence_and_the_next_ingestion_starts_anew(pets: Path, chunk: int) -> None:
    killed(pets, 6)
    path = copy_of(pets).chunk(chunk)
    content = path.read_bytes()
    pq.write_table(pq.read_table(pa.BufferReader(content)).slice(1), path)
    with pytest.raises(SourceError, match=r"its copy in .* is damaged \(the checksum differs\); ingest again"):
        bronze(pets)
    assert rows(bronze(pets)) == landed()


def test_copies_of_contracts_that_have_changed_are_swept_once_bronze_stands(pets: Path, tmp_path: Path) -> None:
    killed(pets, 2)
    contract(pets, {**ORIGIN, "rename": {"caption": "caption"}})
    killed(pets, 2)
    assert len(list((tmp_path / "lake/pets/copies").iterdir())) == 2
    ingested(pets)
    assert list((tmp_path / "lake/pets/copies").iterdir()) == []


def test_progress_that_cannot_be_read_is_none(pets: Path) -> None:
    assert killed(pets, 4).rows == 10
    (copy_of(pets).folder / "progress.json").write_text("{")
    assert rows(bronze(pets)) == landed()


def test_a_database_that_falls_silent_ends_in_a_sentence_and_its_copied_rows_are_kept(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = source(pets).describe()["inputs"]
    copy_of(pets).discard()
    contract(pets, ORIGIN, timeouts={"source_s": 0.3})
    free, land, asked = threading.Event(), TablesSource._from_database, list[str]()

    def silent(self: TablesSource, table: str, values: Any, key: str) -> Any:
        asked.append(key)
        if len(asked) == 8:  # in the second chunk
            free.wait(60)
        return land(self, table, values, key)

    monkeypatch.setattr(TablesSource, "_from_database", silent)
    with pytest.raises(
        SourceError, match=r"gave no rows after key 'r04' for longer than timeouts\.source_s; the 5 rows"
    ):
        source(pets).describe()
    free.set()
    monkeypatch.setattr(TablesSource, "_from_database", land)
    assert copy_of(pets).progress().rows == 5
    assert source(pets).describe()["inputs"] == expected
