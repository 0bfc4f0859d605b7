"""A damaged newest checkpoint is refused by name on every rank, and all go on from the newest older whole one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import CheckpointError, DamagedCheckpoint, FragmentReader
from elasmo.model.stores import LocalStore
from elasmo.train import checkpoint, retention
from elasmo.train.checkpoint_commit import write
from elasmo.train.checkpoint_restore import RestorePoint, restore_newest, restore_points
from elasmo.train.snapshot import Snapshot
from tests.gloo import run_ranks
from tests.train.test_checkpoint import (
    STEPS,
    Net,
    assert_equal_to_dense,
    gather,
    start,
    steps,
)


def test_the_newest_is_tried_first_and_of_one_step_the_one_in_memory() -> None:
    storage = [LocalStore(f"/s/step-{step:06d}") for step in (10, 20)]
    memory = [LocalStore(f"/m/step-{step:06d}") for step in (20, 24)]
    tried = [(point.step, point.tier, point.url) for point in restore_points(storage, memory)]
    assert tried == [
        (24, "memory", "/m/step-000024"),
        (20, "memory", "/m/step-000020"),
        (20, "storage", "/s/step-000020"),
        (10, "storage", "/s/step-000010"),
    ]


POINTS = [RestorePoint(step, f"step-{step:06d}") for step in (30, 20, 10)]


def next_of(point: RestorePoint, reason: str) -> RestorePoint | None:
    left = POINTS[POINTS.index(point) + 1 :]
    return left[0] if left else None


def reader(damaged: dict[int, str]) -> Callable[[RestorePoint], int]:
    def read(point: RestorePoint) -> int:
        if point.step in damaged:
            raise DamagedCheckpoint(damaged[point.step])
        return point.step

    return read


@pytest.mark.parametrize("bad_rank", [0, 2])
def test_what_one_rank_refuses_all_ranks_refuse(bad_rank: int) -> None:
    """Three ranks, of which one finds damage in two checkpoints: what the others hear decides, not what they read."""
    said = [["damage on one rank"], ["damage on one rank"], [None]]

    def heard(own: str | None) -> list[str | None]:
        (other,) = said[len(calls)]
        calls.append(own)
        return [other if rank == bad_rank else None for rank in range(3)]

    calls: list[str | None] = []
    point, value = restore_newest(POINTS[0], reader({}), heard, next_of)
    assert (point.step, value, calls) == (10, 10, [None, None, None])


def test_when_none_is_whole_each_is_named_in_one_sentence() -> None:
    damaged = {
        step: f"x/step-{step} differs in tensor 'w'; restore the file or use another step." for step in (30, 20, 10)
    }
    with pytest.raises(CheckpointError) as caught:
        restore_newest(POINTS[0], reader(damaged), lambda own: [own], next_of)
    assert str(caught.value) == (
        "No checkpoint of the run is whole: x/step-30 differs in tensor 'w'; x/step-20 differs in tensor 'w'; "
        "x/step-10 differs in tensor 'w'; restore a file, or start a new run."
    )


def test_a_checkpoint_of_another_model_is_no_damage() -> None:
    def read(point: RestorePoint) -> int:
        raise CheckpointError("another seed")

    with pytest.raises(CheckpointError, match=r"^another seed$"):
        restore_newest(POINTS[0], read, lambda own: [own], next_of)


def save_damage_resume(rank: int, world: int, stage: int, root: str, damage: Callable[[Path], None]) -> tuple[int, Any]:
    """Two checkpoints, damage to the newer, and a third from what is whole; where that began, and what was refused."""
    engine, parallel = start(stage, world, "float32")
    for first in (0, STEPS):
        steps(engine, rank, world, first, first + STEPS)
        save(engine, parallel, rank, first + STEPS, root)
    if rank == 0:
        damage(Path(root) / retention.folder_name(2 * STEPS))
    engine.destroy()
    engine, parallel = start(stage, world, "float32")
    dist.barrier()
    shapes = {name: tuple(parameter.shape) for name, parameter in Net().named_parameters()}
    points, refused = restore_points(retention.committed(root)), []

    def read(point: RestorePoint) -> Any:
        return checkpoint.read(engine, point.url, parallel[1], shapes)

    def older(point: RestorePoint, reason: str) -> RestorePoint | None:
        refused.append(reason)
        return points[points.index(point) + 1]

    point, found = restore_newest(points[0], read, gather, older)
    checkpoint.finish(engine, found)
    steps(engine, rank, world, point.step, 3 * STEPS)
    save(engine, parallel, rank, 3 * STEPS, root)
    return point.step, refused


def save(engine: Any, parallel: Any, rank: int, step: int, root: str) -> None:
    checkpoint.save(engine, Path(root), step, {"optimizer_step": step}, rank, gather, parallel)


def flip(folder: Path) -> None:
    """The last byte of a rank's file, which lies in one tensor and is read by one rank of three."""
    file = sorted(folder.glob("*.safetensors"))[-1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-100])


def lose(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[0].unlink()


@pytest.mark.parametrize(
    ("stage", "damage", "said"),
    [
        (1, flip, r"rank-00002-.*safetensors differs from its manifest in '.*' of tensor '.*'"),
        pytest.param(3, lose, r"rank-00000-.*safetensors is missing; it holds tensor '.*'", marks=pytest.mark.full),
        pytest.param(0, cut_manifest, "is not a checkpoint manifest", marks=pytest.mark.full),
    ],
    ids=["flipped_byte", "missing_file", "truncated_manifest"],
)
def test_training_goes_on_from_the_older_checkpoint_as_if_it_had_been_the_newest(
    tmp_path: Path, stage: int, damage: Callable[[Path], None], said: str
) -> None:
    for step, refused in run_ranks(3, save_damage_resume, stage, str(tmp_path), damage):
        assert step == STEPS and len(refused) == 1
        assert re.search(said, refused[0]), refused
    assert_equal_to_dense(tmp_path, 3 * STEPS, tolerance=4e-6)


@pytest.mark.parametrize(("damage", "said"), [(lose, "is missing; it holds tensor 'w'"), (cut_manifest, "manifest")])
def test_a_missing_file_and_a_truncated_manifest_are_damage(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    values = Snapshot((Piece("w", 0, {"weight": torch.ones(4)}),), {"w": (4,)})
    write(values, tmp_path, 1, {}, 0, lambda value: [value])
    damage(tmp_path / "step-000001")
    with pytest.raises(DamagedCheckpoint, match=said):
        FragmentReader(tmp_path / "step-000001").tensor("w")
