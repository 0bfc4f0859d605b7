"""Evaluation on the held-out split: every row counted once, over all ranks, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from elasmo.data.draft import Split
from elasmo.data.gold import Gold, GoldRow
from elasmo.model.batch import collate
from elasmo.train.loss import EMPTY, Sums

SPLIT: Split = "heldout"


def evaluate(engine: Any, gold: Gold, batch_size: int, rank: int, world: int, device: torch.device) -> Sums:
    """Losses and right answers of this rank's share of the held-out rows.

    An answer is right when every one of its tokens has the highest logit given the tokens before it, which is when
    greedy decoding gives exactly that answer. Ranks with fewer batches run empty ones, so that collectives match.

    Args:
        engine: DeepSpeed engine around a `LossModule`.
        batch_size: rows of a forward pass.

    Returns:
        This rank's sums; merge them over ranks.
    """
    row_ids = gold.index(SPLIT).row_ids
    batches = -(-len(row_ids) // batch_size)
    sums = Sums()
    engine.eval()
    try:
        with torch.no_grad():
            for rows in _share(gold, row_ids.tolist(), batch_size, rank, world, -(-batches // world)):
                batch = collate([row.encoded for row in rows] if rows else [EMPTY]).to(device)
                losses, correct = engine(batch)
                if rows:
                    sums.add(losses, correct, batch, [row.modality for row in rows])
    finally:
        engine.train()
    return sums


def _share(
    gold: Gold, row_ids: list[int], batch_size: int, rank: int, world: int, rounds: int
) -> Iterator[list[GoldRow]]:
    for turn in range(rounds):
        first = (turn * world + rank) * batch_size
        chosen = row_ids[first : first + batch_size]
        yield gold.read(chosen) if chosen else []
