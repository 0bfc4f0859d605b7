"""Ranks whose micro-batches hold different modalities never wait for each other, in training or in evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elasmo.config import LimitsConfig, TrainConfig
from elasmo.model.batch import Batch, pack
from elasmo.model.sample import Image, Message, Text
from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from elasmo.train.loss import EMPTY
from tests.gloo import run_ranks
from tests.serve.tiny import png, tiny_model


def batch_of(rank: int) -> Batch:
    """Rank 0 has an image, rank 1 text only, rank 2 nothing at all."""
    if rank == 2:
        return pack([EMPTY])
    _, processor = tiny_model()
    segments = (Image(png()), Text("what digit is this?")) if rank == 0 else (Text("what digit is this?"),)
    messages = [Message("user", segments), Message("assistant", (Text("a"),))]
    return pack([processor.encode_chat(messages, LimitsConfig())])


def losses(rank: int, world: int, stage: int) -> list[list[float]]:
    """Losses of an evaluation, of a training step, and of an evaluation after it."""
    model, _ = tiny_model()
    deepspeed_adapter.init_distributed(20)
    engine: Any = TrainEngine(model, TrainConfig(), Layout(dp=world, zero_stage=stage), world).deepspeed
    batch, found = batch_of(rank), []
    for training in (False, True, False):
        engine.train(training)
        with torch.set_grad_enabled(training):
            values, _ = engine(batch)
        if training:
            engine.backward(values.sum(), scale_wrt_gas=False)
            engine.step()
        found.append(values.detach().flatten().tolist())
    return found


@pytest.mark.parametrize("stage", [1, 3])
def test_ranks_of_different_modalities_go_on(stage: int) -> None:
    ranks = run_ranks(3, losses, stage, deadline_s=60)
    model, _ = tiny_model()
    for rank, (before, training, after) in enumerate(ranks):
        expected, _ = model.target_losses(batch_of(rank))
        assert before == pytest.approx(expected.flatten().tolist(), abs=1e-5)
        assert training == pytest.approx(before, abs=1e-5)
        if rank < 2:
            assert after != pytest.approx(before, abs=1e-7)  # the step reached this rank's weights
