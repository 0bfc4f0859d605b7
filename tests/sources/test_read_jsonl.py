"""JSON Lines: a faulty line is a row for the quarantine, with its file, line and reason."""

from __future__ import annotations

import json
from pathlib import Path

from tests.sources.twelve import bronze, contract, ingested, png, refused, rows


def write(folder: Path, content: bytes, **origin: str) -> Path:
    folder.mkdir()
    (folder / "a.png").write_bytes(png(0))
    (folder / "rows.jsonl").write_bytes(content)
    return contract(folder, {"format": "jsonl", "path": "rows.jsonl", **origin}, heldout_fraction=0.0)


def line(key: str, **changes: object) -> bytes:
    row = {"key": key, "picture": "a.png", "caption": "grün", "number": 1, "species": "cat", **changes}
    return json.dumps(row, ensure_ascii=False).encode()


def test_faulty_lines_are_quarantined_with_file_line_and_reason(tmp_path: Path) -> None:
    deep = b"[" * 100_000
    surrogate = line("surrogate").replace("grün".encode(), b"\\ud800")
    lines = [
        line("good"),
        b'{"key": ',
        b"[1]",
        line("latin").decode().encode("latin-1"),
        deep,
        line("list", picture=[1]),
        surrogate,
        b"",
        line("nan", number=float("nan")),
        line("absent", picture="b.png"),
        line("spare", other=[1, 2]),
    ]
    result, _ = ingested(write(tmp_path / "pets", b"\n".join(lines)))
    found = refused(result)
    assert {key: reason.partition(": ")[2][:46] for key, reason in found.items() if key != "nan"} == {
        "rows.jsonl:2": "the line is not valid JSON: Expecting value: li"[:46],
        "rows.jsonl:3": "the line holds a list; it must hold an object",
        "rows.jsonl:4": "the line is not valid UTF-8 text",
        "rows.jsonl:5": "the line is not valid JSON: maximum recursion "[:46],
        "list": "picture is a list; it must be the bytes of a f",
        "surrogate": "caption is not valid UTF-8 text",
        "absent": "picture is 'b.png', and b.png does not exist",
    }
    assert found["nan"] == "number is 'NaN'; it must be a number"
    assert result.counts["silver"] == {"pets": 2}


def test_byte_order_marks_and_encodings_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", b"\xef\xbb\xbf" + line("a"))
    assert [row["caption"] for row in rows(bronze(folder))] == ["grün"]
    (folder / "rows.jsonl").write_bytes((line("a") + b"\n" + line("b")).decode().encode("utf-16"))
    contract(folder, {"format": "jsonl", "path": "rows.jsonl", "encoding": "utf-16"})
    assert [row["caption"] for row in rows(bronze(folder))] == ["grün", "grün"]


def test_an_empty_file_holds_no_row(tmp_path: Path) -> None:
    assert bronze(write(tmp_path / "pets", b"\n\n")).tables() == {"pets": 0}


def test_records_without_a_key_are_called_by_their_line(tmp_path: Path) -> None:
    content = b"\n".join(json.dumps({**json.loads(line("x")), "key": None}).encode() for _ in range(1))
    without = json.loads(line("x"))
    del without["key"]
    folder = write(tmp_path / "pets", b"\n".join([json.dumps(without).encode()] * 2))
    assert [row["key"] for row in rows(bronze(folder))] == ["rows.jsonl:1", "rows.jsonl:2"]
    (folder / "rows.jsonl").write_bytes(content)
    result = bronze(folder).read_all("pets").to_pylist()
    assert [row["landing fault"] for row in result] == ["rows.jsonl:1: key is missing"]
