"""A small run folder with everything a report shows: two modalities, one resize, evaluations, served examples."""

from __future__ import annotations

import base64
import io
import json
import math
import wave
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

RESTORED, LOST_AT, LAST = 4, 6, 12


def picture() -> str:
    data = io.BytesIO()
    Image.linear_gradient("L").resize((8, 8)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def sound() -> str:
    data = io.BytesIO()
    with wave.open(data, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(b"\x00\x10\x00\xf0" * 800)
    return base64.b64encode(data.getvalue()).decode()


def step(number: int, attempt: int, time: float) -> dict[str, Any]:
    world = 2 if attempt == 1 else 1
    return {
        "event": "step",
        "time": time,
        "attempt": attempt,
        "step": number,
        "world": world,
        "loss": 2.0 / number,
        "loss_by_modality": {"image": 4.0 / number, "audio": 8.0 / number**2 if number != 5 else math.nan},
        "tokens": 1000,
        "target_tokens": 100,
        "samples": 16,
        "seconds": {"step": 1.0, "data_wait": 0.125, "compute": 0.5, "communication": 0.25, "other": 0.125},
        "balance": {"decoder": 1.25 if world == 2 else 1.0},
    }


def events() -> list[dict[str, Any]]:
    first = [step(number, 1, 1000.0 + number) for number in range(1, LOST_AT + 1)]
    second = [step(number, 2, 1020.0 + number) for number in range(RESTORED + 1, LAST + 1)]
    resize = {
        "event": "resize", "attempt": 2, "reason": "node died", "lost": "node <b>7</b>", "from_world": 2, "to_world": 1,
        "restored_step": RESTORED, "steps_redone": 2, "samples_returned": 32, "bytes_read": 5 << 20,
        "seconds": {"detect": 2.0, "replan": 3.0, "start": None, "restore": 4.0, "first_step": 1.0, "total": 10.0},
        "plan_before": {"dp": 2, "global_batch": 16}, "plan_after": {"dp": 1, "global_batch": 16},
    }  # fmt: skip
    evaluations = [
        {"event": "eval", "step": at, "loss": 1.0, "accuracy": {"image": share}, "rows": 100, "seconds": 0.5}
        for at, share in ((6, 0.5), (12, 0.75))
    ]
    attempts = [{"event": "attempt", "attempt": 1, "world": 2, "start_step": 0, "time": 1000.0}]
    return [*attempts, *first, evaluations[0], second[0], resize, *second[1:], evaluations[1]]


def served() -> list[dict[str, Any]]:
    right = {"modality": "image", "question": "Which digit?", "expected": "3", "answer": "3", "correct": True}
    wrong = {
        "modality": "audio",
        "question": "Hear?",
        "expected": "4",
        "answer": "<script>alert(1)</script>",
        "correct": False,
    }
    table = {"modality": "table", "question": "Over?", "expected": "yes", "answer": "yes", "correct": True}
    return [
        {**right, "image_png_b64": picture(), "ttft_ms": 12.4, "tpot_ms": 3.2},
        {**right, "image_png_b64": '" onerror="alert(1)'},
        {**wrong, "audio_wav_b64": sound()},
        {**table, "record": {"amount": 12.5, "limit": None}},
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits-1"
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events()))
    (folder / "run.json").write_text(
        json.dumps(
            {"run": "digits-1", "name": "digits", "status": "succeeded", "created": 0, "versions": {"ray": "2.60.0"}}
        )
    )
    (folder / "best.json").write_text(
        json.dumps({"path": "checkpoints/step-000012", "metric": "mean_accuracy", "value": 0.75})
    )
    (folder / "demo.json").write_text(
        json.dumps(
            {"receipts_match_plan": True, "resize": {"steps_redone": 2, "losses": [0.5] * 99}, "config": {"a": 1}}
        )
    )
    (folder / "served.jsonl").write_text("".join(json.dumps(row) + "\n" for row in served()))
    (folder / "config.yaml").write_text("train:\n  steps: 12\n")
    return folder
