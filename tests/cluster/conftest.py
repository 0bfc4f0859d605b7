"""The digits in a lake of their own, and a configuration small enough to train in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasmo.config import Config, load
from elasmo.ingest.ingest import ingest

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "model.decoder={hidden: 32, layers: 2, heads: 2, kv_heads: 1, ffn: 64}",
    "model.vision={hidden: 16, layers: 1, heads: 2, ffn: 32}",
    "model.audio={hidden: 16, layers: 1, heads: 2, ffn: 32}",
    "model.table={hidden: 16}",
    "train.global_batch=16",
    "train.micro_batch=4",
    "train.warmup_steps=5",
    "ray.address=local",
    "ray.health_check_period_ms=500",
)
"""Overrides of the default tree; a global batch is four slots."""


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, ingested once."""
    folder = tmp_path_factory.mktemp("lake")
    ingest(load(None, [f"data.lake={folder}"], {}), ROOT / "data/digits")
    return folder


@pytest.fixture
def tiny(lake: Path, tmp_path: Path) -> Config:
    """A run of 40 steps with a checkpoint every 10."""
    own = [f"data.lake={lake}", f"train.storage={tmp_path / 'runs'}"]
    return load(None, [*TINY, *own, "train.steps=40", "train.checkpoint_every=10", "train.eval_every=20"], {})
