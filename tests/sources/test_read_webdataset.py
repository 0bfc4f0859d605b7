"""WebDataset: neighbours of one name are a record, pickles are never opened, and a cut shard loses nothing unseen."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import pytest

from elasmo.sources.source import SourceError
from tests.sources.test_read_folder import Bomb
from tests.sources.test_tables import parts, write_tar
from tests.sources.twelve import bronze, contract, ingested, landed, png, refused, rows, twelve

RENAME = {"__key__": "key", "png": "picture", "txt": "caption", "cls": "species"}
ORIGIN = {"format": "webdataset", "path": "*.tar", "rename": RENAME}


def write(folder: Path, records: list[dict[str, bytes]]) -> Path:
    folder.mkdir(exist_ok=True)
    write_tar(folder / "a.tar", records)
    return contract(folder, ORIGIN, heldout_fraction=0.0)


def test_an_empty_shard_holds_no_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [parts(row) for row in twelve()])
    write_tar(folder / "b.tar", [])
    assert rows(bronze(folder)) == landed()


def test_folders_and_compound_endings_are_parts_of_names(tmp_path: Path) -> None:
    record = {f"train/a/r00{name[3:]}": content for name, content in parts(twelve()[0]).items()}
    folder = write(tmp_path / "pets", [{**record, "train/a/r00.seg.png": png(5)}])
    rename = {"__key__": "key", "seg.png": "picture", "txt": "caption", "cls": "species"}
    (row,) = rows(bronze(contract(folder, {**ORIGIN, "rename": rename})))
    assert (row["key"], row["picture"]) == ("train/a/r00", png(5))


def test_a_record_that_lacks_a_part_or_is_damaged_is_quarantined(tmp_path: Path) -> None:
    good, bare, text, broken = (parts(row) for row in twelve()[:4])
    del bare["r01.txt"]
    text["r02.txt"] = b"\xff"
    broken["r03.png"] = broken["r03.png"][:40]
    result, _ = ingested(write(tmp_path / "pets", [good, bare, text, broken]))
    found = refused(result)
    assert found.pop("r03").startswith("picture: ")
    assert found == {"r01": "caption is missing", "r02": "a.tar:r02: txt is not valid utf-8 text"}


@pytest.mark.parametrize("ending", ["pyd", "pkl", "pickle", "pth"])
def test_a_pickle_is_never_opened(tmp_path: Path, ending: str) -> None:
    folder = write(tmp_path / "pets", [{**parts(twelve()[0]), f"r00.{ending}": pickle.dumps(Bomb())}])
    assert rows(bronze(folder)) == landed()[:1]
    contract(folder, {**ORIGIN, "rename": {**{k: v for k, v in RENAME.items() if v != "caption"}, ending: "caption"}})
    (row,) = bronze(folder).read_all("pets").to_pylist()
    assert row["landing fault"] == f"a.tar:r00: {ending} is a pickle, which could run code and is never opened"


def damaged(content: bytes, damage: str) -> bytes:
    ends = content.index(b"r06.png")  # the header of the seventh record
    match damage:
        case "in a member":
            return content[: ends - 300]
        case "between members":
            return content[:ends]
        case "in a header":
            return content[:ends] + b"junk" * 128 + content[ends + 512 :]
        case "no tar":
            return b"no tar"
        case _:
            return b""


@pytest.mark.parametrize("damage", ["in a member", "between members", "in a header", "no tar", "empty"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_damaged_shard_is_a_sentence_and_loses_no_record_unseen(tmp_path: Path, damage: str, zipped: bool) -> None:
    folder = write(tmp_path / "pets", [parts(row) for row in twelve()])
    content = damaged((folder / "a.tar").read_bytes(), damage)
    (folder / "b.tar").write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(SourceError, match=r"^b\.tar is (not a tar shard that can be read|cut or damaged at byte)"):
        bronze(folder)


def test_a_cut_gzip_is_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [parts(row) for row in twelve()])
    (folder / "b.tar").write_bytes(gzip.compress((folder / "a.tar").read_bytes())[:-40])
    with pytest.raises(SourceError, match=r"^b\.tar is not a tar shard that can be read"):
        bronze(folder)


def test_a_part_that_is_there_twice_is_a_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [parts(twelve()[0]), {"r00.png": png(3)}])
    with pytest.raises(
        SourceError, match=r"a\.tar is not a WebDataset shard that can be read \(r00\.png is there twice\)"
    ):
        bronze(folder)


def test_links_and_folders_in_a_shard_are_passed_over(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [])
    with tarfile.open(folder / "a.tar", "w") as shard:
        for name, kind in (("d.png", tarfile.DIRTYPE), ("l.png", tarfile.SYMTYPE), ("h.png", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            shard.addfile(member)
        for name, content in parts(twelve()[0]).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    assert rows(bronze(folder)) == landed()[:1]
