"""Loads a published model into an inference engine: what prefill and decode replicas do when they start."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from elasmo.config import EngineConfig
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model import published
from elasmo.model.published import Published


@dataclass(frozen=True)
class LoadedEngine:
    """A published model and the engine that runs it."""

    published: Published
    engine: TorchEngine


def load_engine(path: str, config: EngineConfig) -> LoadedEngine:
    """Reads and verifies the folder at `path`; sets this process's torch threads.

    Raises:
        PublishedError: a file is missing or does not match its checksum.
    """
    torch.set_num_threads(config.threads)
    loaded = published.load(path)
    engine = TorchEngine(loaded.model, loaded.processor.fingerprint(), loaded.model_hash, config)
    return LoadedEngine(loaded, engine)
