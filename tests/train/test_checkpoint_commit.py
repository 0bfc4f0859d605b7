"""A writer that is killed at any moment leaves the newest complete checkpoint whole; ranks fail together."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import pytest
import torch

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import CheckpointError, FragmentReader
from elasmo.model.stores import LocalStore, Store, open_store
from elasmo.train import retention
from elasmo.train.checkpoint_commit import write
from elasmo.train.snapshot import Snapshot

KILLS = 50
NUMEL = 5000


class KilledStore(LocalStore):
    """Counts everything it does to the disk, and kills its process before the one of a number."""

    left = 0

    @classmethod
    def tick(cls) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def child(self, name: str) -> KilledStore:
        return KilledStore(self.path / name)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        def halves() -> Iterator[bytes | memoryview]:
            for chunk in chunks:
                self.tick()
                yield chunk[: len(chunk) // 2]
                self.tick()
                yield chunk[len(chunk) // 2 :]

        return super().write(name, halves())

    def remove(self, name: str) -> None:
        self.tick()
        super().remove(name)


def ticking(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        KilledStore.tick()
        return function(*args, **kwargs)

    return wrapped


def snapshot(step: int, numel: int = NUMEL) -> Snapshot:
    """Every value is the step, so that a mixture of two steps shows."""
    parts = {state: torch.full((numel,), float(step)) for state in ("weight", "exp_avg")}
    return Snapshot((Piece("w", 0, parts),), {"w": (numel,)})


def write_until_killed(pipe: int, root: Path, kill_at: int) -> None:
    """Goes on from the newest checkpoint as a run does, and says which steps it knows to be committed."""
    found = retention.committed(root)
    step = retention.step_of(found[-1].name) if found else 0
    for name in ("fsync", "replace", "unlink", "rmdir"):
        setattr(os, name, ticking(getattr(os, name)))
    KilledStore.left = kill_at
    store = KilledStore(root)
    while True:
        step += 1
        write(snapshot(step), store, step, {"optimizer_step": step}, 0, lambda value: [value])
        os.write(pipe, step.to_bytes(4, "little"))
        retention.prune(store, 2, set())


def test_the_newest_complete_step_loads_after_a_kill_at_every_write(tmp_path: Path) -> None:
    """KempnerForge#102: a writer that dies in the middle, 50 times in a row, each time at a later write."""
    known, committed = 0, set()
    for kill_at in range(1, KILLS + 1):
        told, tell = os.pipe()
        child = os.fork()  # a new interpreter would take a second each time
        if child == 0:
            with suppress(BaseException):
                write_until_killed(tell, tmp_path, kill_at)
            os._exit(1)
        os.close(tell)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        with os.fdopen(told, "rb") as steps:
            known = max(known, int.from_bytes(steps.read()[-4:], "little"))
        found = retention.committed(tmp_path)
        assert found or not known
        for place in found[-1:]:
            reader = FragmentReader(place)
            reader.verify()
            assert reader.manifest.step == retention.step_of(place.name) >= known
            for state in ("weight", "exp_avg"):
                assert torch.equal(reader.tensor("w", state), torch.full((NUMEL,), float(reader.manifest.step)))
            committed.add(reader.manifest.step)
    # The kills fell into writes before and after many commits, and nothing piled up.
    assert len(committed) > 10 and len(list(tmp_path.iterdir())) <= 4 and len(list(tmp_path.rglob("*.part"))) <= 2
    shutil.rmtree(tmp_path)


def ranks(count: int, job: Callable[[int, Callable[[Any], list[Any]]], None]) -> list[BaseException | None]:
    """Runs a rank a thread; they meet in a gather of their own."""
    barrier, box, errors = Barrier(count), [None] * count, [None] * count  # type: Any, list[Any], list[Any]

    def run(rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            box[rank] = value
            barrier.wait(30)
            found = list(box)
            barrier.wait(30)
            return found

        try:
            job(rank, gather)
        except BaseException as error:
            errors[rank] = error

    threads = [Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


def part(rank: int, start: int, stop: int) -> Snapshot:
    return Snapshot((Piece("w", start, {"weight": torch.arange(float(start), float(stop))}),), {"w": (10,)})


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_uneven_parts_of_three_ranks_make_one_checkpoint_in_any_store(kind: str, tmp_path: Path) -> None:
    root = open_store(tmp_path if kind == "local" else f"memory://{uuid4().hex}/run")
    edges = [(0, 1), (1, 3), (3, 10)]
    assert (
        ranks(3, lambda rank, gather: write(part(rank, *edges[rank]), root, 4, {"a": 1}, rank, gather) and None)
        == [None] * 3
    )
    (place,) = retention.committed(root)
    reader = FragmentReader(place.url)
    reader.verify()
    assert torch.equal(reader.tensor("w"), torch.arange(10.0))
    assert torch.equal(reader.read("w", "weight", 2, 5), torch.tensor([2.0, 3.0, 4.0]))
    assert (reader.manifest.step, reader.manifest.meta) == (4, {"a": 1})


def test_a_rank_that_cannot_write_is_named_on_every_rank_and_nothing_is_committed(tmp_path: Path) -> None:
    class Full(LocalStore):
        def child(self, name: str) -> Store:
            return Full(self.path / name)

        def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
            raise OSError(28, "No space left on device")

    def job(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        store = Full(tmp_path) if rank == 1 else LocalStore(tmp_path)
        write(part(rank, 5 * rank, 5 * rank + 5), store, 4, {}, rank, gather)

    for error in ranks(2, job):
        assert isinstance(error, CheckpointError)
        assert "writing failed on rank 1: OSError: [Errno 28] No space left on device" in str(error)
    assert retention.committed(tmp_path) == []


@pytest.mark.parametrize(("edges", "said"), [([(0, 5), (6, 10)], "leave or repeat 5:6"), ([(0, 5), (4, 10)], "5:4")])
def test_a_gap_or_an_overlap_is_refused_before_the_commit(
    tmp_path: Path, edges: list[tuple[int, int]], said: str
) -> None:
    for error in ranks(2, lambda rank, gather: write(part(rank, *edges[rank]), tmp_path, 4, {}, rank, gather) and None):
        assert isinstance(error, CheckpointError) and "of 'w'" in str(error) and said in str(error)
    assert retention.committed(tmp_path) == []
