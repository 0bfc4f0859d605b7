"""A model whose gradients are known in closed form, in an engine of a layout, for tests of what DeepSpeed does."""

from __future__ import annotations

from typing import Any

import deepspeed
import pytest
import torch
from torch import Tensor, nn

from elasmo.config import TrainConfig
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.shards import Shard, whole
from elasmo.train import deepspeed_adapter

PINNED = "0.19.8"
TOGETHER = pytest.mark.parametrize("stages", [(0, 1, 2), (3,)], ids=["zero_0_to_2", "zero_3"])
"""ZeRO 3 replaces `F.linear` in its process, so it runs apart."""
TRAIN = TrainConfig(lr=0.02, weight_decay=0.1, grad_clip=0.5, eps=1e-3)


def moved(what: str, belief: str) -> str:
    return (
        f"DeepSpeed {deepspeed.__version__} moved {what} ({belief}), which train/deepspeed_adapter.py uses as it was "
        f"in {PINNED}; read the new release and mend the adapter."
    )


class Cut(nn.Module):
    """A matrix of which every rank has another part, a vector that is the same on all, and a frozen vector."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.linspace(1, 2, 15).reshape(5, 3) + rank)
        self.copy = nn.Parameter(torch.linspace(-1, 1, 7))
        self.frozen = nn.Parameter(torch.arange(11.0), requires_grad=False)

    def forward(self, part: Tensor, copy: Tensor) -> Tensor:
        """A loss with just these gradients."""
        return (self.part * part).sum() + (self.copy * copy).sum() + 0 * self.frozen.sum()


def gradients(rank: int) -> tuple[Tensor, Tensor]:
    """Of `part`, another one on each rank, and of `copy`."""
    return torch.linspace(1, 3, 15).reshape(5, 3) * (rank + 1), torch.linspace(2, -5, 7)


def adamw(net: Cut) -> torch.optim.AdamW:
    """The oracle: torch's own, on the whole tensors."""
    groups = [{"params": [net.part], "weight_decay": TRAIN.weight_decay}, {"params": [net.copy], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=TRAIN.lr, betas=TRAIN.betas, eps=TRAIN.eps)


def build(rank: int, layout: Layout, mark_copy: bool | None = None, micro_steps: int = 2) -> Any:
    """An engine for `Cut`; the copy on rank 0 counts in the norm, unless `mark_copy` says it of all ranks."""
    deepspeed_adapter.init_distributed(60)
    mesh, net = make_mesh(layout), Cut(rank)
    shards = {name: whole(parameter) for name, parameter in net.named_parameters()}
    counted = mesh.unlike.rank == 0 if mark_copy is None else mark_copy
    shards["copy"] = Shard((7,), ((0, 7),), counted=counted)
    train = TRAIN.model_copy(update={"zero_stage": layout.zero_stage})
    return deepspeed_adapter.build_engine(net, train, micro_steps, (mesh, shards))


def step_once(engine: Any, rank: int, micro_steps: int = 2) -> None:
    for _ in range(micro_steps):
        engine.backward(engine(*gradients(rank)) / micro_steps, scale_wrt_gas=False)
        engine.step()
