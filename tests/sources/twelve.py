"""Twelve rows (image, caption, number, category) that every format must land alike, and what lands them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import yaml

from elasmo.config import Config, load
from elasmo.data.manifest import Snapshot
from elasmo.ingest.bronze import write_bronze
from elasmo.ingest.ingest import IngestResult, ingest
from elasmo.sources.contract import load_contract
from elasmo.sources.tables import TablesSource

COLUMNS: dict[str, dict[str, Any]] = {
    "key": {"type": "string"},
    "picture": {"type": "image"},
    "caption": {"type": "string"},
    "number": {"type": "number"},
    "species": {"type": "category", "categories": ["cat", "dog", "fish"]},
}
TURNS = [
    {"role": "user", "segments": [{"image": "picture"}, {"text": "Which animal is {caption}?"}]},
    {"role": "assistant", "segments": [{"text": "{species}"}]},
]
CAPTIONS = ("plain", "comma, here", 'a "quote"', "two\nlines", "grün – ねこ", "emoji 🐟")


def png(seed: int, size: int = 8) -> bytes:
    """A grey PNG whose bytes are the same with every zlib: its pixels are stored, not compressed."""
    raw = b"".join(b"\0" + bytes((seed * 37 + x * y) % 256 for x in range(size)) for y in range(size))
    stored = (
        b"\x78\x01" + struct.pack("<BHH", 1, len(raw), len(raw) ^ 0xFFFF) + raw + struct.pack(">I", zlib.adler32(raw))
    )
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)), (b"IDAT", stored), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def twelve() -> list[dict[str, Any]]:
    """The rows, typed."""
    return [
        {
            "key": f"r{n:02d}",
            "picture": png(n),
            "caption": f"{CAPTIONS[n % 6]} {n}",
            "number": n / 4,
            "species": ("cat", "dog", "fish")[n % 3],
        }
        for n in range(12)
    ]


def landed() -> list[dict[str, Any]]:
    """The rows as bronze must have them."""
    return [{**row, "number": str(row["number"])} for row in twelve()]


def contract(folder: Path, origin: dict[str, Any], **changes: Any) -> Path:
    """Writes the contract of a dataset that lands table `pets` from `origin`."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = {
        "name": folder.name,
        "title": "Pets",
        "source": "tables",
        "licences": [{"part": "all", "kind": "synthetic", "licence": "CC0-1.0", "origin": "this test"}],
        "modalities": ["image", "text", "image+table", "table"],
        "tables": {"pets": {"columns": COLUMNS}},
        "from": {"pets": origin},
        "samples": [{"table": "pets", "turns": TURNS}],
        **changes,
    }
    (folder / "contract.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True, sort_keys=False))
    return folder


def source(folder: Path) -> TablesSource:
    return TablesSource(folder, load_contract(folder), folder.parent / "lake")


def bronze(folder: Path) -> Snapshot:
    """Lands the dataset as ingestion does."""
    opened = source(folder)
    snapshot = write_bronze(folder.parent / "lake", opened.contract, opened, opened.describe())
    opened.release()
    return snapshot


def rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Bronze rows, in the order of their keys, of which none was refused."""
    found = snapshot.read_all("pets").to_pylist() if snapshot.tables()["pets"] else []
    assert [row["fault"] for row in found if row.pop("landing fault") is not None] == []
    return sorted(found, key=lambda row: str(row["key"]))


def ingested(folder: Path, *overrides: str) -> tuple[IngestResult, Config]:
    """The whole way to gold, in a lake beside the folder."""
    config = load(overrides=[f"data.lake={folder.parent / 'lake'}", "data.vocab_size=300", *overrides], env={})
    return ingest(config, folder), config


def refused(result: IngestResult) -> dict[str, str]:
    """Reason of each refused row of table `pets`, by its key."""
    return {refusal.key: refusal.reason for refusal in result.refused if refusal.table == "pets"}
