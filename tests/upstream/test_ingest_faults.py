"""Faults that other systems' users reported of preparing data: killed writers, two at once, bombs. Each by its name."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from elasmo.config import Config
from elasmo.data.gold import Gold
from elasmo.ingest.ingest import ingest
from tests.pets import config, good_rows, line, pets, write_dataset  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
INGEST = """
import sys
from elasmo.config import load
from elasmo.ingest.ingest import ingest
print("begun", flush=True)
print(ingest(load(None, [f"data.lake={sys.argv[2]}", "data.vocab_size=300"], {}), sys.argv[1]).gold, flush=True)
"""


def start(dataset: Path, lake: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    command = [sys.executable, "-c", INGEST, str(dataset), str(lake)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gold_of(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out.split()[-1]


def layers(lake: Path) -> list[Path]:
    return [path for path in lake.rglob("*") if path.is_dir() and path.parent.name in ("bronze", "silver", "gold")]


def test_an_ingestion_killed_three_times_ends_as_if_it_never_was(pets: Path, config: Config, tmp_path: Path) -> None:  # noqa: F811
    """mosaicml/streaming#781: a writer killed and started again leaves, or trips over, half-written shards."""
    undisturbed = ingest(config, pets).gold
    lake = tmp_path / "killed"
    for number in range(3):
        process = start(pets, lake)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        # The second is killed once bronze stands or is being written, the third once silver is.
        deadline = time.monotonic() + 60
        while len(layers(lake)) < number and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    assert gold_of(start(pets, lake)) == undisturbed
    Gold.open(lake, "pets").verify()
    assert [path.name for path in layers(lake) if path.name.startswith(".")] == []


def test_two_ingestions_at_once_make_one_result(pets: Path, config: Config, tmp_path: Path) -> None:  # noqa: F811
    """mosaicml/streaming#781: two runs that prepare the same data at the same time damage each other's files."""
    undisturbed = ingest(config, pets).gold
    lake = tmp_path / "twice"
    both = [start(pets, lake), start(pets, lake)]
    assert [gold_of(process) for process in both] == [undisturbed, undisturbed]
    Gold.open(lake, "pets").verify()


def bomb(side: int) -> bytes:
    """A valid PNG of `side` x `side` black pixels: some kilobytes that unpack to gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + side)) for _ in range(min(side, 2000))) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [3000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path, config: Config, side: int) -> None:  # noqa: F811
    """ray-project/kuberay#2156: one row that unpacks to gigabytes kills the worker, the retry kills the next one."""
    rows, media = good_rows()
    media["media/bomb.png"] = bomb(side)
    rows.append(line("bomb", {"image": "media/bomb.png"}))
    began = _memory_high()
    result = ingest(config, write_dataset(tmp_path / "bombs", rows, media))
    refused = {refusal.key: refusal.reason for refusal in result.refused}
    assert "pixels" in refused["media/bomb.png"]
    assert sum(result.layers[-1].rows[split] for split in ("train", "heldout")) == 24
    assert _memory_high() - began < 300 << 20


def _memory_high() -> int:
    status = io.StringIO(Path("/proc/self/status").read_text())
    return next(int(row.split()[1]) << 10 for row in status if row.startswith("VmHWM"))
