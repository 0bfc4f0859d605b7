"""Parts come back as they went and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from elasmo.ingest.spill import Spill


def test_parts_come_back_in_order_and_are_deleted(tmp_path: Path) -> None:
    spill = Spill(tmp_path)
    parts = [pa.table({"a": [b"x" * 1000, None], "b": [{"c": number}, None]}) for number in range(3)]
    for part in parts:
        spill.add("scans", part)
    spill.add("clips", parts[0])
    assert [read.equals(part) for read, part in zip(spill.read("scans"), parts, strict=True)] == [True] * 3
    assert list(spill.read("scans")) == list(spill.read("other")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["clips-000000.arrow"]
