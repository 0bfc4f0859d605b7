"""Steps of more or fewer slots than the engine was made for train as if the same rows had come in the usual ones."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from tests.gloo import run_ranks
from tests.parallel import oracle
from tests.parallel.layout_run import compare_owned, note, start

COUNTS = (7, 2, 5)
"""Slots of each step; the engine is made for four."""


def differences(rank: int, world: int, kind: str, layouts: list[Layout]) -> list[dict[str, float]]:
    """For each layout the largest relative differences from the dense run on the usual slots."""
    deepspeed_adapter.init_distributed(60)
    found = []
    for layout in layouts:
        dense, engine = oracle.dense_run(kind), start(kind, layout)
        worst: dict[str, float] = {}
        for step, count in enumerate(COUNTS):
            rows = [row for slot in oracle.slots(kind, step) for row in slot]
            slots = [rows[number::count] for number in range(count)]
            targets = oracle.targets(slots)
            mine = [slot for slot in slots[engine.mesh.place.dp :: layout.dp] if slot]
            feed = [mine[micro] if micro < len(mine) else None for micro in range(engine.micro_steps(count))]
            total = torch.zeros(())
            for output in engine.step(feed, targets, slots=count):
                if output is not None and engine.leads:
                    total += output.losses.sum() / targets
            dist.all_reduce(total)
            note(worst, "loss", abs(float(total) - dense.losses[step]) / dense.losses[step])
            compare_owned(engine, dense, step, worst)
        engine.deepspeed.destroy()
        found.append(worst)
    return found


@pytest.mark.parametrize(
    "layouts",
    [
        [Layout(dp=2, zero_stage=stage) for stage in (0, 1, 2)] + [Layout(dp=1, pp=2, zero_stage=1)],
        [Layout(dp=2, zero_stage=3)],
    ],
    ids=["zero_0_to_2_and_pipeline", "zero_3"],
)
def test_steps_of_other_numbers_of_slots_equal_the_dense_run(layouts: list[Layout]) -> None:
    for ranks in run_ranks(2, differences, "multimodal", layouts, deadline_s=120):
        for layout, worst in zip(layouts, ranks, strict=True):
            assert max(worst.values()) < 1e-5, (layout, worst)
