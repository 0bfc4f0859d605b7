"""A fault on purpose happens to one rank, at one step, in one life of the worker group."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from elasmo.config import ChaosConfig
from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import DamagedCheckpoint, FragmentReader
from elasmo.model.stores import LocalStore
from elasmo.train import retention
from elasmo.train.chaos import Chaos, corrupt_newest
from elasmo.train.checkpoint_commit import write
from elasmo.train.snapshot import Snapshot


@pytest.mark.parametrize(
    ("rank", "attempt", "step", "poisoned"), [(1, 1, 5, True), (0, 1, 5, False), (1, 2, 5, False), (1, 1, 4, False)]
)
def test_losses_become_nan_where_and_when_it_was_asked(rank: int, attempt: int, step: int, poisoned: bool) -> None:
    chaos = Chaos([ChaosConfig(step=5, rank=1, do="nan")], rank, attempt)
    losses = torch.ones(1, 3)
    chaos.losses(step, losses)
    assert bool(losses.isnan().all()) == poisoned


def test_one_bit_of_one_weight_flips(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    Chaos([ChaosConfig(step=2, do="flip")], 0, 1).begin(2, net, LocalStore(tmp_path))
    changed = [(net.weight.detach() != before["weight"]).sum(), (net.bias.detach() != before["bias"]).sum()]
    assert changed == [1, 0] and torch.allclose(net.weight, before["weight"])


def test_the_newest_checkpoint_is_corrupted_and_no_other(tmp_path: Path) -> None:
    assert corrupt_newest(LocalStore(tmp_path)) is None
    for step in (1, 2):
        values = torch.full((4,), float(step))
        write(Snapshot((Piece("w", 0, {"weight": values}),), {"w": (4,)}), tmp_path, step, {}, 0, lambda value: [value])
    Chaos([ChaosConfig(step=3, do="corrupt")], 0, 1).begin(3, nn.Linear(1, 1), LocalStore(tmp_path))
    first, second = retention.committed(tmp_path)
    FragmentReader(first).verify()
    with pytest.raises(DamagedCheckpoint, match="of tensor 'w'"):
        FragmentReader(second).verify()


def test_a_frozen_rank_stands_still_for_as_long_as_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("elasmo.train.chaos.time.sleep", slept.append)
    Chaos([ChaosConfig(step=2, do="freeze", seconds=7.0)], 0, 1).begin(2, nn.Linear(1, 1), LocalStore(tmp_path))
    assert slept == [7.0]
