"""Paths of a contract: globs, folders, absolute paths and URLs; never out of the folder by `..` or a link."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasmo.sources.locate import locate
from elasmo.sources.source import SourceError
from tests.sources.twelve import bronze, contract, landed, png, rows, twelve


def names(folder: Path, path: str, *suffixes: str) -> list[str]:
    return [file.name for file in locate(folder, "from.pets.path", path, suffixes)]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for name in ("b/2.csv", "b/10.csv", "b/c/3.csv", "b/note.md", "[x].csv"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).write_text(name)
    return tmp_path / "pets"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("b/2.csv", ["b/2.csv"]),
        ("b/note.md", ["b/note.md"]),
        ("b/*.csv", ["b/10.csv", "b/2.csv"]),
        ("b/**/*.csv", ["b/10.csv", "b/2.csv", "b/c/3.csv"]),
        ("b", ["b/10.csv", "b/2.csv", "b/c/3.csv"]),
        ("[x].csv", ["[x].csv"]),
    ],
)
def test_a_path_is_a_file_a_glob_or_a_folder(pets: Path, path: str, found: list[str]) -> None:
    assert names(pets, path, ".csv") == found


def test_an_absolute_path_may_lead_anywhere_on_purpose(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("x")
    assert names(pets, str(tmp_path / "other.csv")) == [str(tmp_path / "other.csv")]
    assert names(pets, f"file://{tmp_path}/other.csv") == [f"file://{tmp_path}/other.csv"]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("../other.csv", r"from\.pets\.path is '\.\./other\.csv', which leaves the dataset's folder by '\.\.'"),
        ("b/../../other.csv", "leaves the dataset's folder"),
        ("file:///tmp/../etc/passwd", "leaves the dataset's folder"),
        ("gone.csv", r"which names no file; give a file, a glob or a folder that has some"),
        ("b/*.parquet", "which names no file"),
        ("b", r"which names no file that ends with \.parquet"),
        ("nosuch://x/y", "which cannot be reached"),
        ("https://me:secret@example.org/x.csv", "from.pets.path holds a password"),
        ("zip://x.csv::file:///tmp/a.zip", "holds chained URLs"),
    ],
)
def test_a_path_that_leads_nowhere_or_out_is_refused(pets: Path, path: str, sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        names(pets, path, ".parquet")


def test_a_link_out_of_the_folder_is_refused(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("x")
    (pets / "b/link.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(SourceError, match=r"link\.csv is a link that leaves the dataset's folder"):
        names(pets, "b/*.csv")


def test_a_url_of_any_file_system_lands_with_its_media(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/media/a.png", png(0))
    lines = ["key,picture,caption,number,species", "a,media/a.png,x,1,cat"]
    store.pipe("/bucket/rows.csv.gz", gzip.compress("\n".join(lines).encode()))
    table = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(twelve()), table)
    store.pipe("/bucket/rows.parquet", table.getvalue().to_pybytes())

    folder = contract(tmp_path / "pets", {"format": "csv", "path": "memory://bucket/*.csv.gz"})
    snapshot = bronze(folder)
    assert [row["picture"] for row in rows(snapshot)] == [png(0)]
    assert sorted(snapshot.details["inputs"]) == ["memory:///bucket/media/a.png", "memory:///bucket/rows.csv.gz"]
    contract(folder, {"format": "parquet", "path": "memory://bucket/rows.parquet"})
    assert rows(bronze(folder)) == landed()


def test_media_beside_a_file_do_not_leave_its_folder_by_a_link(tmp_path: Path) -> None:
    folder = contract(tmp_path / "pets", {"format": "csv", "path": "rows.csv"})
    (tmp_path / "secret.png").write_bytes(png(1))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "rows.csv").write_text("key,picture,caption,number,species\na,link.png,x,1,cat\n")
    (row,) = bronze(folder).read_all("pets").to_pylist()
    assert row["landing fault"].startswith("rows.csv:2: picture is 'link.png', which leaves the folder of rows.csv")


@pytest.mark.parametrize("name", ["rows.csv.gz", "rows.csv.bz2", "rows.csv.xz"])
def test_a_damaged_compressed_file_is_a_sentence(tmp_path: Path, name: str) -> None:
    folder = contract(tmp_path / "pets", {"format": "csv", "path": name})
    packed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[name.rpartition(".")[2]](
        b"key,caption\n" + bytes(range(48, 90)) * 500
    )
    (folder / name).write_bytes(packed[:40] + b"\xff" * 40 + packed[80:])
    with pytest.raises(SourceError, match=rf"^{name} is not a file that can be read"):
        bronze(folder)
