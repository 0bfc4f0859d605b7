"""The loop copies and goes on; at most one checkpoint is in flight; what the writer raises reaches the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import CheckpointError, FragmentReader
from elasmo.model.stores import LocalStore
from elasmo.train.checkpoint_saver import CheckpointSaver, Saved
from elasmo.train.snapshot import Snapshot


def alone(value: Any) -> list[Any]:
    return [value]


class Gate:
    """Opens when the test says so."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()


class GatedStore(LocalStore):
    """A store that is slow on purpose."""

    def __init__(self, path: str | Path, gate: Gate) -> None:
        super().__init__(path)
        self.gate = gate

    def child(self, name: str) -> GatedStore:
        return GatedStore(self.path / name, self.gate)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        self.gate.reached.set()
        assert self.gate.open.wait(30)
        return super().write(name, chunks)


def snapshot(values: torch.Tensor) -> Snapshot:
    return Snapshot((Piece("w", 0, {"weight": values}),), {"w": tuple(values.shape)})


def test_the_loop_goes_on_while_a_slow_store_writes_what_the_step_held(tmp_path: Path) -> None:
    gate, saved = Gate(), []  # type: Gate, list[Saved]
    saver = CheckpointSaver(GatedStore(tmp_path, gate), 0, alone)
    weights = torch.arange(6.0)
    saver.save(snapshot(weights), 1, {}, saved.append)
    assert gate.reached.wait(30)
    weights.mul_(100)  # the next optimizer step, in place, while the store still holds the write back
    assert not (tmp_path / "step-000001" / "manifest.json").exists() and not saved
    gate.open.set()
    saver.finish()
    assert torch.equal(FragmentReader(tmp_path / "step-000001").tensor("w"), torch.arange(6.0))
    assert [item.manifest.step for item in saved] == [1]


def test_a_second_checkpoint_waits_for_the_first(tmp_path: Path) -> None:
    gate = Gate()
    saver = CheckpointSaver(GatedStore(tmp_path, gate), 0, alone)
    saver.save(snapshot(torch.ones(3)), 1, {})
    second = threading.Thread(target=saver.save, args=(snapshot(torch.zeros(3)), 2, {}))
    second.start()
    second.join(0.2)
    assert second.is_alive() and not (tmp_path / "step-000002").exists()
    gate.open.set()
    second.join(30)
    saver.finish()
    # The first was whole before the buffers were used again.
    for step, value in ((1, 1.0), (2, 0.0)):
        assert torch.equal(FragmentReader(tmp_path / f"step-00000{step}").tensor("w"), torch.full((3,), value))


class FullStore(LocalStore):
    def child(self, name: str) -> FullStore:
        return FullStore(self.path / name)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("background", [True, False])
def test_what_the_writer_raises_is_one_sentence_at_the_next_save_and_at_the_end(
    tmp_path: Path, background: bool
) -> None:
    saver = CheckpointSaver(FullStore(tmp_path), 0, alone, background)
    said = r"step-000001 was not committed: writing failed on rank 0: OSError: .*No space left on device; mend"
    if not background:
        with pytest.raises(CheckpointError, match=said):
            saver.save(snapshot(torch.ones(3)), 1, {})
        return
    saver.save(snapshot(torch.ones(3)), 1, {})
    with pytest.raises(CheckpointError, match=said) as caught:
        saver.save(snapshot(torch.ones(3)), 2, {})
    assert "\n" not in str(caught.value)
    saver.save(snapshot(torch.ones(3)), 3, {})
    with pytest.raises(CheckpointError, match="step-000003 was not committed"):
        saver.finish()


class SlowStore(LocalStore):
    """Takes `seconds` for a rank's file."""

    def __init__(self, path: str | Path, seconds: float) -> None:
        super().__init__(path)
        self.seconds = seconds

    def child(self, name: str) -> SlowStore:
        return SlowStore(self.path / name, self.seconds)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        if name.endswith(".safetensors"):
            time.sleep(self.seconds)
        return super().write(name, chunks)


def step_seconds(steps: int, step_s: float, every: int, saver: CheckpointSaver | None) -> list[float]:
    taken = []
    for step in range(1, steps + 1):
        started = time.perf_counter()
        time.sleep(step_s)
        if saver is not None and step % every == 0:
            saver.save(snapshot(torch.ones(1000)), step, {})
        taken.append(time.perf_counter() - started)
    if saver is not None:
        saver.finish()
    return taken


@pytest.mark.parametrize(
    ("save_s", "step_s", "every", "steps"),
    [(0.3, 0.01, 40, 120), pytest.param(5.0, 0.05, 110, 330, marks=pytest.mark.full)],
)
def test_a_store_that_takes_many_steps_for_a_save_does_not_slow_them(
    tmp_path: Path, save_s: float, step_s: float, every: int, steps: int
) -> None:
    """ray#48801: a save that takes 5 s beside steps of 50 ms; in the fast tier a smaller one."""
    plain = step_seconds(steps, step_s, every, None)
    ours = step_seconds(steps, step_s, every, CheckpointSaver(SlowStore(tmp_path, save_s), 0, alone))
    before, after = (median(taken) for taken in (plain, ours))
    assert after <= 1.1 * before + 0.002  # of which the scheduler may take some
    # The steps at which a checkpoint was taken did not wait for the store either, and all were committed.
    saving = ours[every - 1 :: every]
    assert median(saving) < save_s / 2
    assert len(list(tmp_path.glob("step-*/manifest.json"))) == steps // every


def test_a_store_that_is_slower_than_the_interval_holds_training_back_and_says_so(tmp_path: Path) -> None:
    saved: list[Saved] = []
    saver = CheckpointSaver(SlowStore(tmp_path, 0.2), 0, alone)
    for step in (1, 2):
        saver.save(snapshot(torch.ones(10)), step, {}, saved.append)
    saver.finish()
    assert saved[0].waited_s < 0.1 < saved[1].waited_s and saved[1].stalled_s >= saved[1].waited_s
