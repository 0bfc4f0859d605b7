"""Only committed checkpoints count; the newest, pinned and read ones stay; a half-removed one is none."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import torch

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import MANIFEST, FragmentReader
from elasmo.model.stores import Store, open_store
from elasmo.train import retention
from elasmo.train.checkpoint_commit import write
from elasmo.train.snapshot import Snapshot


def alone(value: object) -> list[object]:
    return [value]


def save(root: str | Path | Store, step: int) -> None:
    values = torch.full((4,), float(step))
    write(Snapshot((Piece("w", 0, {"weight": values}),), {"w": (4,)}), root, step, {}, 0, alone)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(tmp_path if request.param == "local" else f"memory://{uuid4().hex}")


def names(root: Store) -> list[str]:
    return [place.name for place in retention.committed(root)]


def test_only_committed_checkpoints_are_listed_and_counted(root: Store) -> None:
    for step in (1, 2, 3):
        save(root, step)
    root.child(retention.folder_name(4)).put("rank-00000-dead.safetensors", b"half")
    assert names(root) == ["step-000001", "step-000002", "step-000003"]
    assert retention.prune(root, 2, set()) == ["step-000001"]
    assert names(root) == ["step-000002", "step-000003"]
    # What may still be being written is left alone; once a later step is committed it is a leftover.
    assert root.children()[-1] == "step-000004"
    save(root, 5)
    assert retention.prune(root, 2, set()) == ["step-000002", "step-000004"]


def test_steps_are_ordered_as_numbers_beyond_a_million(root: Store) -> None:
    for step in (1_000_000, 999_990, 20):
        save(root, step)
    root.child("step-999991").put("rank-00000-dead.safetensors", b"half")
    assert names(root) == ["step-000020", "step-999990", "step-1000000"]
    assert retention.prune(root, 2, set()) == ["step-000020", "step-999991"]


def test_the_newest_stays_whatever_is_asked(root: Store) -> None:
    save(root, 1)
    assert retention.prune(root, 0, set()) == [] and names(root) == ["step-000001"]


def test_a_checkpoint_that_is_read_stays_until_its_reader_is_done_or_its_lease_ends(root: Store) -> None:
    for step in (1, 2):
        save(root, step)
    first = root.child("step-000001")
    with retention.reading(first):
        assert retention.prune(root, 1, set()) == []
    abandoned = retention.reading(first, lease_s=60.0, now=lambda: 1000.0)
    abandoned.__enter__()  # a reader that was killed
    assert retention.prune(root, 1, set(), now=lambda: 1059.0) == []
    assert retention.prune(root, 1, set(), now=lambda: 1061.0) == ["step-000001"]


def test_the_manifest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        save(tmp_path, step)

    def killed(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elasmo.model.stores.LocalStore.clear", killed)
    with pytest.raises(KeyboardInterrupt):
        retention.prune(tmp_path, 1, set())
    assert not (tmp_path / "step-000001" / MANIFEST).exists()
    assert names(open_store(tmp_path)) == ["step-000002"]


def test_a_step_that_is_written_again_is_replaced_in_one_step_and_leaves_no_file(root: Store) -> None:
    """What a rolled-back run does: there is a whole checkpoint at every moment."""
    save(root, 1)
    old = set(root.child("step-000001").files())
    values = torch.full((4,), 7.0)
    write(Snapshot((Piece("w", 0, {"weight": values}),), {"w": (4,)}), root, 1, {}, 0, alone)
    place = root.child("step-000001")
    assert torch.equal(FragmentReader(place).tensor("w"), values)
    assert len(place.files()) == len(old) == 2 and set(place.files()) - old


def test_a_checkpoint_that_was_set_aside_counts_no_more_and_drives_no_whole_one_out(root: Store) -> None:
    for step in (1, 2):
        save(root, step)
    damaged = root.child("step-000002")
    retention.set_aside(damaged)
    assert names(root) == ["step-000001"]
    # Of one that stays the newest of the files goes on to be kept, and one put forgives it.
    assert retention.prune(root, 1, set()) == [] and any(name.endswith(".safetensors") for name in damaged.files())
    damaged.put(MANIFEST, bytes(damaged.read(retention.DAMAGED)))
    FragmentReader(damaged).verify()
    retention.set_aside(damaged)
    save(root, 2)
    assert names(root) == ["step-000001", "step-000002"] and retention.DAMAGED not in damaged.files()
    retention.set_aside(root.child("step-000009"))  # nothing there
