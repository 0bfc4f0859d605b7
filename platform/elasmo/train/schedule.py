"""The learning rate as a function of the step: linear warm-up, then cosine decay."""

from __future__ import annotations

import math

from elasmo.config import TrainConfig


def learning_rate(train: TrainConfig, step: int) -> float:
    """Learning rate of zero-based `step`: the same for any world size and after any resume.

    Cosine decay to `lr * min_lr_ratio` at the last step (Loshchilov & Hutter 2017, without restarts).
    """
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    floor = train.lr * train.min_lr_ratio
    progress = (step - train.warmup_steps) / max(1, train.steps - train.warmup_steps - 1)
    return floor + (train.lr - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
