"""CSV: faulty lines are rows for the quarantine, encodings are read as they are, a broken file is a sentence."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from elasmo.sources.contract import ContractError
from elasmo.sources.source import SourceError
from tests.sources.twelve import bronze, contract, ingested, png, refused, rows

HEADER = "key,picture,caption,number,species"


def write(folder: Path, content: bytes, **origin: Any) -> Path:
    (folder / "tables/media").mkdir(parents=True)
    (folder / "tables/media/a.png").write_bytes(png(0))
    (folder / "tables/rows.csv").write_bytes(content)
    return contract(folder, {"format": "csv", "path": "tables/rows.csv", **origin}, heldout_fraction=0.0)


def test_faulty_lines_are_quarantined_with_file_line_and_reason(tmp_path: Path) -> None:
    lines = [
        HEADER.encode(),
        b"good,media/a.png,one,1,cat",
        b"short,media/a.png,one,1",
        b'quote,media/a.png,"one"x,1,cat',
        b"latin,media/a.png,gr\xfcn,1,cat",
        b"",
        b"gone,media/b.png,one,1,cat",
        b"out,../../a.png,one,1,cat",
        b",media/a.png,one,1,cat",
        b"number,media/a.png,one,many,cat",
        b"empty,media/a.png,,1,cat",
        b'fine,media/a.png,"two\nlines",2,dog',
        b'open,media/a.png,"never closed,2,dog',
    ]
    result, _ = ingested(write(tmp_path / "pets", b"\r\n".join(lines)))
    at = "tables/rows.csv"
    assert refused(result) == {
        f"{at}:3": f"{at}:3: the line has 4 fields; the header has 5",
        f"{at}:4": f"{at}:4: the line is not valid CSV: ',' expected after '\"'",
        "latin": f"{at}:5: caption is not valid UTF-8 text",
        "gone": f"{at}:7: picture is 'media/b.png', and tables/media/b.png does not exist",
        "out": f"{at}:8: picture is '../../a.png', which leaves the folder of {at}; it must be relative, without ..",
        f"{at}:9": f"{at}:9: key is missing",
        "number": "number is 'many'; it must be a number",
        "empty": "caption is missing",
        f"{at}:14": f"{at}:14: the line is not valid CSV: unexpected end of data",
    }
    assert result.counts["silver"] == {"pets": 2}


@pytest.mark.parametrize(
    ("encoding", "text"), [("latin-1", "grün"), ("utf-16", "ねこ"), ("cp1252", "“”"), ("utf-8", "🐟")]
)
def test_encodings_and_delimiters_are_read_as_named(tmp_path: Path, encoding: str, text: str) -> None:
    content = f"{HEADER}\na,media/a.png,{text},1,cat\n".replace(",", ";").encode(encoding)
    (row,) = rows(bronze(write(tmp_path / "pets", content, encoding=encoding, delimiter=";")))
    assert (row["caption"], row["picture"]) == (text, png(0))


def test_a_gzipped_file_lands(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", b"")
    (folder / "tables/more.csv.gz").write_bytes(gzip.compress(f"{HEADER}\na,media/a.png,x,1,cat\n".encode()))
    assert len(rows(bronze(contract(folder, {"format": "csv", "path": "tables"})))) == 1


def test_empty_files_hold_no_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", b"")
    (folder / "tables/header.csv").write_text(HEADER)
    assert bronze(contract(folder, {"format": "csv", "path": "tables/*.csv"})).tables() == {"pets": 0}


@pytest.mark.parametrize(
    ("content", "origin", "sentence"),
    [
        (b"key,key\na,b\n", {}, r"rows\.csv is not a CSV file that can be read \(column 'key' is there twice\)"),
        (b"\xff\xfeq", {"encoding": "utf-16"}, r"rows\.csv is not a text file that can be read"),
        (b"\x1f\x8b\x08\x00cut", {"path": "tables/rows.csv.gz"}, "which names no file"),
    ],
)
def test_a_broken_file_is_a_sentence(tmp_path: Path, content: bytes, origin: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        bronze(write(tmp_path / "pets", content, **origin))


def test_a_cut_gzip_is_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", b"")
    (folder / "tables/more.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n{'x' * 9000}".encode())[:-20])
    with pytest.raises(SourceError, match=r"more\.csv\.gz is not a file that can be read"):
        bronze(contract(folder, {"format": "csv", "path": "tables/more.csv.gz"}))


@pytest.mark.parametrize(
    ("origin", "sentence"),
    [
        ({"encoding": "utf-99"}, r"from\.pets\.encoding: it must be an encoding that Python knows"),
        ({"format": "parquet", "delimiter": ";"}, "delimiter is for csv; remove it from format parquet"),
        ({"format": "parquet", "encoding": "latin-1"}, "encoding is for csv, jsonl, folder"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(tmp_path: Path, origin: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        bronze(write(tmp_path / "pets", b"", **origin))
