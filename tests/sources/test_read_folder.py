"""Folders of media with sidecars: a stem is a record; faulty sidecars are quarantined and pickles never opened."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.sources.twelve import bronze, contract, ingested, png, refused, rows

RENAME = {"png": "picture", "txt": "caption"}
ORIGIN = {"format": "folder", "path": "pets", "rename": RENAME}
NOTE = '{"number": 1, "species": "cat"}'


def write(folder: Path, **files: bytes) -> Path:
    """Files by their name, in which `__` stands for a dot and `___` for a slash."""
    for name, content in files.items():
        path = folder / "pets" / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return contract(folder, ORIGIN, heldout_fraction=0.0)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was opened')",)


def test_a_stem_is_a_record_called_by_its_place(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "pets",
        a__png=png(0),
        a__txt="grün".encode(),
        a__json=NOTE.encode(),
        cats___a__PNG=png(1),
        cats___a__txt=b"\xef\xbb\xbfcat",
        cats___a__json=NOTE.encode(),
    )
    (folder / "pets/.DS_Store").write_bytes(b"junk")
    found = rows(bronze(folder))
    assert [(row["key"], row["caption"], row["picture"]) for row in found] == [
        ("pets/a", "grün", png(0)),
        ("pets/cats/a", "cat", png(1)),
    ]


def test_faulty_sidecars_are_quarantined_and_the_rest_lands(tmp_path: Path) -> None:
    files = {
        **{f"{name}__png": png(n) for n, name in enumerate(("good", "latin", "cut", "bare"))},
        **{f"{name}__txt": b"text" for name in ("good", "cut", "bare", "lost")},
        **{f"{name}__json": NOTE.encode() for name in ("good", "latin", "lost")},
        "latin__txt": b"gr\xfcn",
        "cut__json": NOTE.encode()[:9],
    }
    result, _ = ingested(write(tmp_path / "pets", **files))
    assert refused(result) == {
        "pets/latin": "pets/latin: txt is not valid utf-8 text",
        "pets/cut": "number is missing",
        "pets/bare": "number is missing",
        "pets/lost": "picture is missing",
    }
    contract(tmp_path / "pets", {**ORIGIN, "encoding": "latin-1"})
    assert "grün" in {row["caption"] for row in rows(bronze(tmp_path / "pets"))}


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    files = {"a__png": png(0), "a__txt": b"text", "a__json": NOTE.encode(), "a__pkl": pickle.dumps(Bomb())}
    folder = write(tmp_path / "pets", **files)
    assert [row["caption"] for row in rows(bronze(folder))] == ["text"]
    contract(folder, {**ORIGIN, "rename": {"png": "picture", "pkl": "caption"}})
    (row,) = bronze(folder).read_all("pets").to_pylist()
    assert row["landing fault"] == "pets/a: pkl is a pickle, which could run code and is never opened"
