"""Damage anywhere in a source ends in a sentence or in faulty rows: no traceback, no row lost unseen."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from elasmo.sources.source import SourceError
from tests.sources.test_tables import FORMATS, dataset
from tests.sources.twelve import source

LINES = ("csv", "jsonl")
"""Formats that do not say how many records they hold, so that a cut between two is no damage."""


def damage(content: bytes, chance: random.Random) -> bytes:
    """The content with bytes changed, put in or cut off."""
    at = chance.randrange(len(content) + 1)
    match chance.choice(("change", "insert", "cut")):
        case "change":
            changed = bytearray(content)
            for _ in range(chance.choice((1, 8))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)
        case "insert":
            return content[:at] + chance.randbytes(chance.randrange(1, 20)) + content[at:]
        case _:
            return content[:at]


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_a_sentence_or_a_faulty_row(tmp_path: Path, name: str) -> None:
    (tmp_path / "whole").mkdir()
    whole = dataset(tmp_path / "whole", name)
    files = sorted(p for p in whole.rglob("*") if p.is_file() and p.name not in ("contract.yaml", "split.yaml"))
    chance, ends = random.Random(7), {"sentence": 0, "rows": 0}
    for turn in range(40):
        folder = tmp_path / str(turn) / "pets"
        shutil.copytree(whole, folder)
        file = folder / chance.choice(files).relative_to(whole)
        file.write_bytes(damage(file.read_bytes(), chance))
        opened = source(folder)
        try:
            opened.describe()
            rows = list(opened.land())
        except SourceError:
            ends["sentence"] += 1
        else:
            ends["rows"] += 1
            assert len(rows) >= 12 or name in LINES
        opened.release()
    assert sum(ends.values()) == 40
