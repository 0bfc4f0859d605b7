"""Evaluation on the held-out split: every row counted once, over all ranks, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasmo.data.draft import Split
from elasmo.data.gold_mixture import GoldMixture
from elasmo.train.engine import TrainEngine
from elasmo.train.loss import Sums

SPLIT: Split = "heldout"


def evaluate(engine: TrainEngine, gold: GoldMixture, batch_size: int) -> Sums:
    """Losses and right answers of this rank's share of the held-out rows.

    An answer is right when every one of its tokens has the highest logit given the tokens before it, which is when
    greedy decoding gives exactly that answer. Ranks with fewer batches run empty ones, so that collectives match.

    Args:
        batch_size: rows of a forward pass.

    Returns:
        This rank's sums; merge them over ranks.
    """
    row_ids = gold.index(SPLIT).row_ids.tolist()
    sums = Sums()
    engine.deepspeed.eval()
    try:
        for chosen in shares(row_ids, batch_size, engine.mesh.place.dp, engine.layout.dp):
            rows = gold.read(chosen)
            output = engine.evaluate([row.encoded for row in rows] if rows else None)
            if output is not None and engine.leads:
                sums.add(output.losses, output.correct, output.batch, [row.modality for row in rows])
    finally:
        engine.deepspeed.train()
    return sums


def shares(row_ids: Sequence[int], batch_size: int, rank: int, world: int) -> Iterator[list[int]]:
    """Rows of each forward pass of one rank: every row on one rank, and as many passes, some empty, on each rank."""
    for first in range(0, len(row_ids), batch_size * world):
        mine = first + rank * batch_size
        yield list(row_ids[mine : mine + batch_size])
