"""Loads a published model into an inference engine: what prefill and decode replicas do when they start."""

from __future__ import annotations

import torch

from elasmo.config import EngineConfig
from elasmo.engine.grammar import GrammarCompiler
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model import published


def load_engine(path: str, config: EngineConfig) -> TorchEngine:
    """An engine of the model published at `path`, verified; sets this process's torch threads.

    Raises:
        PublishedError: a file is missing or does not match its checksum.
    """
    torch.set_num_threads(config.threads)
    loaded = published.load(path)
    processor = loaded.own_processor()
    model = loaded.model.to(getattr(torch, config.dtype))
    grammars = GrammarCompiler(processor.tokenizer.to_str(), model.vocab_size, model.config.tokens.end)
    return TorchEngine(model, processor.fingerprint(), loaded.model_hash, config, grammars)
