"""Trains a tiny model under a layout on real ranks and measures its distance from the dense run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from elasmo.train.freeze import freeze
from tests.parallel import oracle


def distances(rank: int, world: int, kind: str, layouts: list[Layout]) -> list[dict[str, float]]:
    """For each layout the largest relative differences of loss, gradient norm, gradients and weights over all steps.

    One process runs them one after the other; ZeRO 3 replaces `F.linear` in its process, so its layouts go apart.
    """
    deepspeed_adapter.init_distributed(60)
    return [distance(kind, layout) for layout in layouts]


def distance(kind: str, layout: Layout) -> dict[str, float]:
    dense = oracle.dense_run(kind)
    engine = start(kind, layout)
    worst: dict[str, float] = {}
    for step in range(oracle.STEPS):
        loss = run_step(engine, kind, step)
        note(worst, "loss", abs(loss - dense.losses[step]) / dense.losses[step])
        norm = deepspeed_adapter.grad_norm(engine.deepspeed)
        if norm is not None:
            note(worst, "norm", abs(norm - dense.norms[step]) / dense.norms[step])
        compare_owned(engine, dense, step, worst)
    engine.deepspeed.destroy()
    return worst


def start(kind: str, layout: Layout, patterns: tuple[str, ...] = (), offload: str = "none") -> TrainEngine:
    train = oracle.TRAIN.model_copy(update={"zero_stage": layout.zero_stage, "offload": offload})
    model = oracle.make_model(kind)
    if patterns:
        freeze(model, patterns)
    return TrainEngine(model, train, layout, oracle.SLOTS)


def run_step(engine: TrainEngine, kind: str, step: int) -> float:
    """One optimizer step; returns the global loss."""
    slots = oracle.slots(kind, step)
    count = oracle.targets(slots)
    mine = slots[engine.mesh.place.dp :: engine.layout.dp]
    feed = [mine[micro] if micro < len(mine) else None for micro in range(engine.micro_steps(oracle.SLOTS))]
    total = torch.zeros(())
    for output in engine.step(feed, count):
        if output is not None and engine.leads:
            total += output.losses.sum() / count
    dist.all_reduce(total)
    return float(total)


def compare_owned(engine: TrainEngine, dense: oracle.DenseRun, step: int, worst: dict[str, float]) -> None:
    for owned in deepspeed_adapter.owned_slices(engine.deepspeed):
        box = tuple(slice(*edge) for edge in engine.shards[owned.name].box)
        for label, ours, full in (
            ("gradient", owned.exp_avg, dense.moments[step][owned.name]),
            ("weight", owned.weight, dense.weights[step][owned.name]),
        ):
            wanted = full[box].reshape(-1)[owned.start : owned.stop]
            note(worst, f"{label} {owned.name}", relative(ours, wanted, full))


def relative(ours: Tensor, wanted: Tensor, full: Tensor) -> float:
    """Norm of the difference in units of the norm of the whole tensor."""
    scale = float(full.norm())
    return float((ours - wanted).norm()) / scale if scale else float(ours.norm())


def note(worst: dict[str, float], name: str, value: float) -> None:
    worst[name] = max(worst.get(name, 0.0), value)
