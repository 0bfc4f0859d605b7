"""A small dataset folder of real media files, and the config that ingests it."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from elasmo.config import Config, load

CONTRACT: dict[str, Any] = {
    "name": "pets",
    "title": "Pets",
    "source": "files",
    "licences": [{"part": "all", "kind": "synthetic", "licence": "CC0-1.0", "origin": "this test"}],
    "modalities": ["image", "audio", "image+audio", "table", "text"],
    "media": {"sample_rate": 22_050, "image_pixels": 4096, "audio_s": 1.0},
    "record": {
        "age": {"type": "number", "min": 0, "max": 30, "integer": True},
        "coat": {"type": "category", "categories": ["black", "white"], "nullable": True},
    },
}


def png(seed: int, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size, size), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def wav(seed: int, rate: int = 22_050, seconds: float = 0.2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        noise = np.random.default_rng(seed).integers(-9000, 9000, int(rate * seconds), dtype=np.int16)
        out.writeframes(noise.tobytes())
    return file.getvalue()


def line(name: str, *segments: dict[str, Any], answer: str = "yes", **keys: Any) -> dict[str, Any]:
    """A row of rows.jsonl: one question made of segments, one answer."""
    messages = [
        {"role": "user", "segments": [*segments, {"text": "Is it a cat?"}]},
        {"role": "assistant", "segments": [{"text": answer}]},
    ]
    return {"id": name, "messages": messages, **keys}


def write_dataset(
    folder: Path, rows: list[dict[str, Any] | str], media: dict[str, bytes], contract: dict[str, Any] | None = None
) -> Path:
    """A dataset folder of `files`; a row given as text is written as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contract.yaml").write_text(yaml.safe_dump({**CONTRACT, **(contract or {}), "name": folder.name}))
    for path, content in media.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "rows.jsonl").write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return folder


def good_rows() -> tuple[list[dict[str, Any] | str], dict[str, bytes]]:
    """Twenty training rows and four held-out ones of every modality, all fit."""
    rows: list[dict[str, Any] | str] = []
    media: dict[str, bytes] = {}
    for number in range(24):
        split = "heldout" if number >= 20 else "train"
        image, audio = f"media/{number}.png", f"media/{number}.wav"
        media |= {image: png(number), audio: wav(number)}
        record = {"age": number, "coat": "black" if number % 2 else None}
        segments = [[{"image": image}], [{"audio": audio}], [{"image": image}, {"audio": audio}], [{"table": record}]]
        keys = {"split": split, "concept": f"pet-{number}"}
        rows.append(line(f"row-{number}", *segments[number % 4], answer=f"answer {number % 3}", **keys))
    return rows, {path: media[path] for path in media if any(path in json.dumps(row) for row in rows)}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder in which every row is fit."""
    return write_dataset(tmp_path / "pets", *good_rows())


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(overrides=[f"data.lake={tmp_path / 'lake'}", "data.vocab_size=300"], env={})
