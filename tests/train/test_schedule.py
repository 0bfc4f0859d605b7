"""The learning rate follows the step alone."""

from __future__ import annotations

import math

import pytest

from elasmo.config import TrainConfig
from elasmo.train.schedule import learning_rate


def test_warm_up_is_linear_and_decay_is_a_half_cosine() -> None:
    train = TrainConfig(steps=101, warmup_steps=10, lr=1.0, min_lr_ratio=0.1)
    assert [learning_rate(train, step) for step in range(10)] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert learning_rate(train, 10) == pytest.approx(1.0)
    assert learning_rate(train, 55) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert learning_rate(train, 100) == pytest.approx(0.1)


def test_a_run_of_warm_up_only_and_of_one_step() -> None:
    assert learning_rate(TrainConfig(steps=1, warmup_steps=0, lr=0.5), 0) == pytest.approx(0.5)
    assert learning_rate(TrainConfig(steps=5, warmup_steps=10, lr=1.0), 4) == pytest.approx(0.5)
