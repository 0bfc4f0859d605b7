"""MDS: encodings land by their kind, pickles are never opened, hashes and counts hold."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from elasmo.sources.source import SourceError
from tests.sources.test_read_folder import Bomb
from tests.sources.test_tables import SHARDS
from tests.sources.twelve import bronze, contract, landed, png, rows

ORIGIN = {"format": "mds", "path": "mds"}
ROW = {"key": ("str", b"a"), "picture": ("png", png(0)), "caption": ("str", b"text"), "species": ("str", b"cat")}


def write(folder: Path, samples: list[dict[str, tuple[str, bytes]]], fixed: dict[str, int] | None = None) -> Path:
    """One shard of samples given as encoding and bytes, by the published layout."""
    (folder / "mds").mkdir(parents=True, exist_ok=True)
    names = sorted(samples[0]) if samples else ["key"]
    sizes = [(fixed or {}).get(name) for name in names]
    body = b""
    ends = [4 + 4 * (len(samples) + 1)]
    for sample in samples:
        free = [sample[name][1] for name, size in zip(names, sizes, strict=True) if size is None]
        body += b"".join(struct.pack("<I", len(value)) for value in free) + b"".join(sample[name][1] for name in names)
        ends.append(ends[0] + len(body))
    raw = struct.pack(f"<{len(ends) + 1}I", len(samples), *ends) + body
    (folder / "mds/shard.00000.mds").write_bytes(raw)
    part = {"basename": "shard.00000.mds", "bytes": len(raw), "hashes": {"sha1": hashlib.sha1(raw).hexdigest()}}
    shard = {
        "column_names": names,
        "column_encodings": [samples[0][name][0] for name in names] if samples else ["str"],
        "column_sizes": sizes,
        "compression": None,
        "format": "mds",
        "raw_data": part,
        "samples": len(samples),
        "version": 2,
        "zip_data": None,
    }
    (folder / "mds/index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
    return contract(folder, ORIGIN)


@pytest.mark.parametrize(
    ("encoding", "value", "text"),
    [
        ("int", struct.pack("<q", -5), "-5"),
        ("uint8", b"\xff", "255"),
        ("float16", struct.pack("<e", 0.5), "0.5"),
        ("float32", struct.pack("<f", 0.25), "0.25"),
        ("str_int", b"12345678901234567890", "12345678901234567890"),
        ("str_decimal", b"1.50", "1.50"),
        ("json", b'{"a": [1]}', '{"a": [1]}'),
    ],
)
def test_numbers_and_texts_land_by_their_encoding(tmp_path: Path, encoding: str, value: bytes, text: str) -> None:
    fixed = {} if encoding.startswith(("str", "json")) else {"number": len(value)}
    (row,) = rows(bronze(write(tmp_path / "pets", [{**ROW, "number": (encoding, value)}], fixed)))
    assert (row["number"], row["picture"], row["caption"]) == (text, png(0), "text")


def test_raw_pixels_land_as_png(tmp_path: Path) -> None:
    raw = struct.pack("<3I", 2, 1, 1) + b"L" + bytes([7, 9])
    record = {**ROW, "picture": ("pil", raw), "number": ("str", b"1")}
    (row,) = rows(bronze(write(tmp_path / "pets", [record])))
    assert Image.open(io.BytesIO(row["picture"])).tobytes() == bytes([7, 9])


@pytest.mark.parametrize(
    ("column", "encoding", "value", "reason"),
    [
        ("caption", "pkl", pickle.dumps(Bomb()), "caption is a pickle, which could run code and is never opened"),
        ("number", "ndarray:float32", b"1234", "number has the MDS encoding 'ndarray:float32', which does not land"),
        ("caption", "str", b"\xff", "caption is not valid UTF-8 text"),
        ("picture", "pil", b"12", "picture is no image of raw pixels"),
    ],
)
def test_what_cannot_land_is_a_fault_of_its_row(
    tmp_path: Path, column: str, encoding: str, value: bytes, reason: str
) -> None:
    folder = write(tmp_path / "pets", [{**ROW, "number": ("str", b"1"), column: (encoding, value)}])
    (row,) = bronze(folder).read_all("pets").to_pylist()
    assert row["landing fault"].startswith(f"mds/shard.00000.mds:1: {reason}")


def test_an_empty_shard_holds_no_row(tmp_path: Path) -> None:
    assert bronze(write(tmp_path / "pets", [])).tables() == {"pets": 0}


def test_a_damaged_sample_is_a_fault_and_the_next_one_lands(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [{**ROW, "number": ("str", b"1")}] * 2)
    path, index = folder / "mds/shard.00000.mds", folder / "mds/index.json"
    content = bytearray(path.read_bytes())
    content[16:20] = struct.pack("<I", 9999)  # the size of the first column of the first sample
    path.write_bytes(bytes(content))
    tree = json.loads(index.read_text())
    tree["shards"][0]["raw_data"]["hashes"] = {}
    index.write_text(json.dumps(tree))
    first, second = bronze(folder).read_all("pets").to_pylist()
    assert first["landing fault"].startswith("mds/shard.00000.mds:1: the sample is not valid MDS: columns take")
    assert (second["landing fault"], second["key"]) == (None, "a")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda shard: shard["raw_data"]["hashes"].update(sha1="0" * 40), r"its sha1 differs from the index"),
        (lambda shard: shard["raw_data"].update(bytes=5), r"it has \d+ of 5 bytes"),
        (lambda shard: shard.update(samples=3), "it holds 1 samples and its index counts 3"),
        (
            lambda shard: shard.update(format="json"),
            r"index\.json is not an MDS index .*shards\.0\.format: Input should be 'mds'",
        ),
        (
            lambda shard: shard["raw_data"].update(basename="gone.mds"),
            r"names shard 'gone\.mds', which is not beside it",
        ),
        (lambda shard: shard.pop("raw_data"), r"index\.json is not an MDS index that can be read"),
    ],
)
def test_a_shard_that_differs_from_its_index_is_a_sentence(tmp_path: Path, change: Any, sentence: str) -> None:
    folder = write(tmp_path / "pets", [{**ROW, "number": ("str", b"1")}])
    index = folder / "mds/index.json"
    tree = json.loads(index.read_text())
    change(tree["shards"][0])
    index.write_text(json.dumps(tree))
    with pytest.raises(SourceError, match=sentence):
        bronze(folder)


@pytest.mark.parametrize("kept", [0, 40])
def test_a_cut_shard_is_a_sentence(tmp_path: Path, kept: int) -> None:
    shutil.copytree(SHARDS / "mds", tmp_path / "pets/mds")
    path = tmp_path / "pets/mds/shard.00001.mds.zstd"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"shard\.00001\.mds\.zstd is not an MDS shard that can be read"):
        bronze(contract(tmp_path / "pets", ORIGIN))


def test_every_compression_that_needs_no_other_package_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", [{**ROW, "number": ("str", b"1")}])
    plain, index = folder / "mds/shard.00000.mds", folder / "mds/index.json"
    (folder / "mds/shard.00000.mds.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    tree = json.loads(index.read_text())
    tree["shards"][0] |= {
        "compression": "gz:9",
        "zip_data": {"basename": "shard.00000.mds.gz", "bytes": 1, "hashes": {}},
    }
    index.write_text(json.dumps(tree))
    assert [row["key"] for row in rows(bronze(folder))] == [landed()[0]["key"].replace("r00", "a")]
