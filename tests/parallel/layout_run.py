"""Trains a tiny model under a layout on real ranks and measures its distance from the dense run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.model.batch import Encoded, pack
from elasmo.parallel.forward import ParallelModel
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.parallelize import parallelize
from elasmo.train import deepspeed_adapter
from tests.parallel import oracle


def distances(rank: int, world: int, kind: str, layout: Layout) -> dict[str, float]:
    """Largest relative differences of loss, gradient norm and moments over all steps; what this rank owns."""
    deepspeed_adapter.init_distributed(60)
    dense = oracle.dense_run(kind, layout.row_multiple)
    mesh = make_mesh(layout)
    model = oracle.make_model(kind)
    shards = parallelize(model, mesh, [range(oracle.DECODER.layers)])
    parallel = ParallelModel(model, mesh, shards)
    train = oracle.TRAIN.model_copy(update={"zero_stage": layout.zero_stage})
    micro_steps = -(-oracle.SLOTS // layout.dp)
    engine = deepspeed_adapter.build_engine(parallel, train, micro_steps, (mesh, shards))
    worst: dict[str, float] = {}
    for step in range(oracle.STEPS):
        loss = run_step(engine, parallel, kind, step, micro_steps)
        note(worst, "loss", abs(loss - dense.losses[step]) / dense.losses[step])
        norm = deepspeed_adapter.grad_norm(engine)
        if norm is not None:
            note(worst, "norm", abs(norm - dense.norms[step]) / dense.norms[step])
        for owned in deepspeed_adapter.owned_slices(engine):
            box = tuple(slice(*edge) for edge in shards[owned.name].box)
            for label, ours, full in (
                ("gradient", owned.exp_avg, dense.moments[step][owned.name]),
                ("weight", owned.weight, dense.weights[step][owned.name]),
            ):
                wanted = full[box].reshape(-1)[owned.start : owned.stop]
                note(worst, f"{label} {owned.name}", relative(ours, wanted, full))
    return worst


def run_step(engine: Any, parallel: ParallelModel, kind: str, step: int, micro_steps: int) -> float:
    """One optimizer step; returns the global loss."""
    layout, mesh = parallel.mesh.layout, parallel.mesh
    batches = oracle.slots(kind, step, layout.row_multiple)
    count = oracle.targets(batches)
    mine = batches[mesh.place.dp :: layout.dp]
    total = torch.zeros(())
    for micro in range(micro_steps):
        batch = mine[micro] if micro < len(mine) else pack([Encoded.empty()], layout.row_multiple)
        real = micro < len(mine)
        parallel.set_aux_scale(layout.zero_ranks / oracle.SLOTS if real else 0.0)
        losses, _ = engine(batch)
        engine.backward(losses.sum() * (layout.zero_ranks / count if real else 0.0), scale_wrt_gas=False)
        engine.step()
        total += losses.detach().sum() / count / layout.tp
    dist.all_reduce(total)
    return float(total)


def relative(ours: Tensor, wanted: Tensor, full: Tensor) -> float:
    """Largest difference in units of the whole tensor's largest value."""
    scale = float(full.abs().max())
    return float((ours - wanted).abs().max()) / scale if scale else float(ours.abs().max())


def note(worst: dict[str, float], name: str, value: float) -> None:
    worst[name] = max(worst.get(name, 0.0), value)
