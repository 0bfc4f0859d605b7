"""The memory tier's store without a cluster: copies in two holders, budgets, losses, and checkpoints through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from elasmo.config import MemoryConfig
from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import CheckpointError, DamagedCheckpoint, FragmentReader
from elasmo.train import retention
from elasmo.train.checkpoint_commit import write
from elasmo.train.memory_holder import Holder, HolderFull
from elasmo.train.memory_saver import MemorySaver
from elasmo.train.memory_store import Bytes, HolderLost, MemoryStore
from elasmo.train.memory_tier import MemoryTierError, check_budget, choose_nodes
from elasmo.train.snapshot import Snapshot

MB = 1 << 20


class Direct:
    """A holder in this process that can be killed, with or without its bytes being gone at once."""

    def __init__(self, budget: int = 8 * MB) -> None:
        self.holder, self.dead, self.fetched = Holder(budget, lambda data: data.copy()), False, 0

    def _living(self) -> Holder:
        if self.dead:
            raise HolderLost("killed")
        return self.holder

    def hold(self, place: str, name: str, shared: Any) -> Callable[[], None]:
        return lambda: self._living().hold(place, name, shared)

    def fetch(self, place: str, name: str) -> Bytes | None:
        self.fetched += 1
        found: Bytes | None = self._living().fetch(place, name)
        return found

    def files(self, place: str) -> dict[str, int]:
        return self._living().files(place)

    def children(self, place: str) -> list[str]:
        return self._living().children(place)

    def remove(self, place: str, name: str) -> None:
        self._living().remove(place, name)

    def clear(self, place: str) -> None:
        self._living().clear(place)


def two(budget: int = 8 * MB) -> tuple[MemoryStore, Direct, Direct]:
    first, second = Direct(budget), Direct(budget)
    return MemoryStore([first, second], lambda data: data, "run"), first, second


def snapshot(step: int, numel: int = 1000) -> Snapshot:
    return Snapshot((Piece("w", 0, {"weight": torch.full((numel,), float(step))}),), {"w": (numel,)})


def save(store: MemoryStore, step: int) -> None:
    write(snapshot(step), store, step, {"optimizer_step": step}, 0, lambda value: [value])


def test_a_file_is_in_both_holders_each_with_its_own_bytes() -> None:
    store, first, second = two()
    child = store.child("step-000001")
    data = bytearray(b"abcdef")
    assert child.write("f", iter([memoryview(data)[:2], b"cdef"])) == 6
    child.put("g", b"12")
    data[:] = b"xxxxxx"
    for client in (first, second):
        client.holder.fetch("run/step-000001", "f")[0] = ord("A" if client is second else "a")
    assert (child.read("f"), child.read("f", 2, 4), child.read("f", 5, 9)) == (b"abcdef", b"cd", b"f")
    first.dead = True
    again = store.child("step-000001")
    assert again.read("f") == b"Abcdef" and again.size("g") == 2 and again.files() == ["f", "g"]
    assert (store.children(), store.copies, store.url) == (["step-000001"], 1, "ray-memory://run")
    with pytest.raises(FileNotFoundError):
        again.read("h")


def test_a_file_crosses_to_the_reader_once_however_many_parts_are_wanted() -> None:
    store, first, _ = two()
    place = store.child("p")
    place.write("f", [b"0123456789"])
    reader = store.child("p")
    assert b"".join(reader.read("f", at, at + 1) for at in range(10)) == b"0123456789" and first.fetched == 1


def test_a_replaced_file_is_read_anew_and_removing_is_seen() -> None:
    store, *_ = two()
    place = store.child("p")
    place.put("f", b"old")
    assert place.read("f") == b"old"
    place.put("f", b"new")
    assert place.read("f") == b"new"
    place.remove("f")
    assert store.child("p").files() == [] and store.children() == []


def test_a_checkpoint_in_memory_is_whole_or_not_at_all_and_survives_one_holder() -> None:
    store, first, second = two()
    for step in (1, 2):
        save(store, step)
        retention.prune(store, 1, set())
    assert [place.name for place in retention.committed(store)] == ["step-000002"]
    first.dead = True
    (place,) = retention.committed(store)
    reader = FragmentReader(place)
    reader.verify()
    assert torch.equal(reader.tensor("w"), torch.full((1000,), 2.0))
    second.dead = True
    assert retention.committed(store) == []
    with pytest.raises(DamagedCheckpoint, match="ray-memory://run/step-000002 has no manifest"):
        FragmentReader(store.child("step-000002"))


def test_a_flipped_byte_in_memory_is_refused_by_its_tensors_name() -> None:
    store, first, second = two()
    save(store, 1)
    (name,) = (name for name in store.child("step-000001").files() if name.endswith(".safetensors"))
    for client in (first, second):
        client.holder.fetch("run/step-000001", name)[-1] ^= 1
    with pytest.raises(DamagedCheckpoint, match=r"rank-00000-.* differs from its manifest in 'weight' of tensor 'w'"):
        FragmentReader(store.child("step-000001")).tensor("w")


def test_the_budget_is_never_exceeded_and_a_replaced_file_makes_room() -> None:
    holder = Holder(100, lambda data: data)
    holder.hold("a", "f", b"x" * 60)
    holder.hold("a", "f", b"y" * 90)
    with pytest.raises(HolderFull, match=r"b/g has 0.0 MB, and 0.0 of 0.0 MB are taken; two .* train.memory.budget_mb"):
        holder.hold("b", "g", b"z" * 11)
    assert holder.bytes == 90 and holder.files("b") == {}
    holder.clear("a")
    assert holder.bytes == 0 and holder.children("") == []


def test_a_checkpoint_that_does_not_fit_is_reported_leaves_nothing_and_stops_nothing() -> None:
    store, first, _ = two(budget=9000)
    events: list[Any] = []
    saver = MemorySaver(store, 0, lambda value: [value], events.append)
    saver.save(snapshot(1), 1, {})
    saver.save(snapshot(2, numel=3000), 2, {})  # three times the first
    saver.save(snapshot(3, numel=10), 3, {})
    saver.finish()
    assert [(event["step"], "refused" in event) for event in events] == [(1, False), (2, True), (3, False)]
    assert "train.memory.budget_mb" in events[1]["refused"] and events[0]["copies"] == 2
    assert [place.name for place in retention.committed(store)] == ["step-000003"]
    assert first.holder.children("run") == ["step-000003"]


def test_a_tier_whose_holders_are_all_gone_says_so_and_training_goes_on() -> None:
    store, first, second = two()
    first.dead = second.dead = True
    events: list[Any] = []
    saver = MemorySaver(store, 0, lambda value: [value], events.append)
    saver.save(snapshot(1), 1, {})
    saver.finish()
    assert "no holder of the memory tier is left" in events[0]["refused"]
    with pytest.raises(CheckpointError, match="no holder"):
        save(store, 2)


def test_holders_go_to_different_nodes_and_a_lost_one_is_replaced_elsewhere() -> None:
    alive = {"a": 100.0, "b": 300.0, "c": 200.0}
    assert choose_nodes(alive, (), 2) == ["b", "c"]
    assert choose_nodes(alive, ("c",), 2) == ["b"]
    assert choose_nodes({"a": 100.0, "c": 200.0}, ("b", "c"), 2) == ["a"]  # b is gone
    assert choose_nodes({"a": 100.0}, ("a",), 2) == []  # one node holds one copy
    assert choose_nodes(alive, ("a", "b"), 2) == []


def test_a_budget_that_would_make_a_node_spill_is_refused_with_what_would_do() -> None:
    check_budget(MemoryConfig(budget_mb=100), 50, {"n": 250.0})
    with pytest.raises(MemoryTierError, match=r"budget_mb=101 does not fit .* node abcdefgh, 250 MB .* at most 100"):
        check_budget(MemoryConfig(budget_mb=101), 50, {"abcdefghij": 250.0, "big": 9000.0})
