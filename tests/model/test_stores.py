"""Every kind of store keeps the same small contract, and says where it is."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from elasmo.model import stores
from elasmo.model.stores import FsspecStore, LocalStore, Store, StoreError, open_store

KINDS = pytest.mark.parametrize("kind", ["local", "memory", "moved"])


def made(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if kind == "local":
        return open_store(tmp_path / "root")
    if kind == "moved":  # a file system whose PUT is not atomic
        monkeypatch.setattr(stores, "ATOMIC_PUT", frozenset())
    return open_store(f"memory://{uuid4().hex}/root")


@KINDS
def test_what_is_written_is_listed_read_in_parts_and_removed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(kind, tmp_path, monkeypatch)
    assert store.files() == store.children() == []
    place = store.child("step-000001")
    assert place.write("a", iter([b"01234", memoryview(b"56789")])) == 10
    place.put("b", b"old")
    place.put("b", b"new")
    assert (store.children(), place.files()) == (["step-000001"], ["a", "b"])
    assert (bytes(place.read("a", 2, 6)), bytes(place.read("a")), bytes(place.read("b"))) == (
        b"2345",
        b"0123456789",
        b"new",
    )
    assert bytes(place.read("a", 8, 20)) == b"89"
    assert (place.size("a"), place.name) == (10, "step-000001")
    for absent in (lambda: place.read("zzz"), lambda: place.size("zzz")):
        with pytest.raises(FileNotFoundError):
            absent()
    place.remove("a")
    place.remove("a")
    assert place.files() == ["b"]
    place.clear()
    place.clear()
    assert store.children() == []


@KINDS
def test_a_url_opens_the_same_place_again(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = made(kind, tmp_path, monkeypatch).child("x")
    place.put("a", b"1")
    assert bytes(open_store(place.url).read("a")) == b"1"


def test_a_write_that_fails_leaves_neither_a_name_nor_a_part(tmp_path: Path) -> None:
    def chunks():  # type: ignore[no-untyped-def]
        yield b"half"
        raise OSError("No space left on device")

    store = LocalStore(tmp_path)
    store.put("a", b"before")
    with pytest.raises(OSError, match="No space"):
        store.write("a", chunks())
    assert os.listdir(tmp_path) == ["a"] and store.read("a") == b"before"


def test_a_file_url_is_a_folder_and_an_unknown_protocol_is_refused(tmp_path: Path) -> None:
    opened = open_store(f"file://{tmp_path}/x")
    assert isinstance(opened, LocalStore) and opened.path == tmp_path / "x"
    with pytest.raises(StoreError, match=r"nosuch://a/b cannot be opened: .*name a folder"):
        open_store("nosuch://a/b")


def test_a_listing_is_never_from_a_cache(tmp_path: Path) -> None:
    """Other processes write to the same place; fsspec's caches would hide what they wrote."""
    fs = fsspec.filesystem("dir", path=str(tmp_path), fs=fsspec.filesystem("file"))
    store = FsspecStore(fs, "")
    assert store.files() == []
    (tmp_path / "a").write_bytes(b"1")
    assert store.files() == ["a"] and store.size("a") == 1
