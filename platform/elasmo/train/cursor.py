"""Where a run's data stands after a number of steps, and all that its plan is a function of."""

from __future__ import annotations

from typing import Any

from elasmo.config import Config
from elasmo.data.gold_mixture import GoldMixture


def cursor(config: Config, gold: GoldMixture, done: int) -> dict[str, Any]:
    """What must be the same for a run to go on after `done` steps without repeating or skipping a row."""
    return {
        "step": done,
        "sources": gold.cursor(done),
        "seed": config.seed,
        "global_batch": config.train.global_batch,
        "micro_batch": config.train.micro_batch,
        "shuffle_window_shards": config.data.shuffle_window_shards,
        "slot_tokens": [config.train.slot_tokens, config.train.slot_encoder_tokens],
        "loss_on": config.train.loss_on,
    }
