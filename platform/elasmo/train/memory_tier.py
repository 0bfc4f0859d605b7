"""The memory tier in a Ray cluster: holder actors on different nodes that outlive trainers, replaced when lost.

The run's state owns them, so they go when the run does. Nothing of theirs may spill: a budget is refused that the
nodes' object stores could not keep beside the data's look-ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elasmo.config import Config, MemoryConfig
from elasmo.model.stores import Store
from elasmo.train import retention
from elasmo.train.memory_holder import Holder, HolderFull
from elasmo.train.memory_store import Bytes, HolderLost, MemoryStore

CALL_TIMEOUT_S = 10.0
COPY_TIMEOUT_S = 120.0
USABLE = 0.8
"""Part of an object store that fills before Ray spills."""


class MemoryTierError(ValueError):
    """A budget that the cluster's object stores cannot keep, said in a sentence."""


def check_budget(memory: MemoryConfig, lookahead_mb: int, stores_mb: Mapping[str, float]) -> None:
    """Refuses a budget that would make a node spill.

    A node keeps the budget, and for a moment what its rank hands over, which is at most half of it: two checkpoints
    must fit. Beside it lies the look-ahead of a rank.

    Args:
        stores_mb: object store of each node.

    Raises:
        MemoryTierError: names the smallest store.
    """
    node, smallest = min(stores_mb.items(), key=lambda item: item[1])
    needed = 1.5 * memory.budget_mb + lookahead_mb
    if needed > USABLE * smallest:
        most = int((USABLE * smallest - lookahead_mb) / 1.5)
        raise MemoryTierError(
            f"train.memory.budget_mb={memory.budget_mb} does not fit the object store of node {node[:8]}, "
            f"{smallest:.0f} MB beside data.lookahead_mb={lookahead_mb}; set at most {max(0, most)}, or start Ray with "
            "more --object-store-memory."
        )


def object_stores_mb() -> dict[str, float]:
    """Object store of each living node."""
    return {
        node["NodeID"]: node["Resources"].get("object_store_memory", 0.0) / (1 << 20)
        for node in ray.nodes()
        if node["Alive"]
    }


def choose_nodes(alive: Mapping[str, float], holding: Sequence[str], copies: int) -> list[str]:
    """Nodes that get a holder so that there are `copies` on different ones, or as many as there are nodes.

    Args:
        alive: object store of each living node.
        holding: nodes that have one.
    """
    free = sorted((node for node in alive if node not in holding), key=lambda node: (-alive[node], node))
    return free[: max(0, copies - sum(node in alive for node in holding))]


class RayHolder:
    """A `memory_store.Client` of a holder actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def hold(self, place: str, name: str, shared: Any) -> Callable[[], None]:
        return partial(self._wait, self._actor.hold.remote(place, name, shared), COPY_TIMEOUT_S)

    def fetch(self, place: str, name: str) -> Bytes | None:
        found = self._wait(self._actor.fetch.remote(place, name))
        if found is None:
            return None
        data: Bytes = self._wait(found[0], COPY_TIMEOUT_S)
        return data

    def files(self, place: str) -> dict[str, int]:
        return dict(self._wait(self._actor.files.remote(place)))

    def children(self, place: str) -> list[str]:
        return list(self._wait(self._actor.children.remote(place)))

    def remove(self, place: str, name: str) -> None:
        self._wait(self._actor.remove.remote(place, name))

    def clear(self, place: str) -> None:
        self._wait(self._actor.clear.remote(place))

    def _wait(self, ref: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HolderFull):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            raise HolderLost(f"{type(error).__name__}: {error}") from None


def open_memory(run_id: str, names: Sequence[str], namespace: str) -> MemoryStore:
    """The tier of a run, from any process of the cluster.

    Args:
        names: of its holders, as the run's state tells them.
    """
    clients = []
    for name in names:
        try:
            clients.append(RayHolder(ray.get_actor(name, namespace=namespace)))
        except ValueError:  # gone since
            continue
    return MemoryStore(clients, ray.put, run_id)


class MemoryTier:
    """The holders of a run, kept by its state."""

    def __init__(self, config: Config, run_id: str, namespace: str) -> None:
        self._config, self._run_id, self._namespace = config, run_id, namespace
        self._holders: dict[str, tuple[str, Any]] = {}
        self._made = 0

    @property
    def on(self) -> bool:
        return self._config.train.memory.every is not None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._holders.values())

    def renew(self) -> list[Store]:
        """The checkpoints that survive, oldest first; holders of lost nodes are then replaced by empty ones."""
        alive = object_stores_mb()
        self._holders = {node: held for node, held in self._holders.items() if node in alive}
        found = self._whole() if self._holders else []
        for node in choose_nodes(alive, tuple(self._holders), self._config.train.memory.copies):
            self._made += 1
            name = f"elasmo-memory-{self._run_id}-{self._made}"
            self._holders[node] = (name, self._start(node, name))
        return found

    def _whole(self) -> list[Store]:
        """What is committed; what a dead attempt left half-way goes, since it takes room."""
        store = self.store()
        found = retention.committed(store)
        for name in set(store.children()) - {place.name for place in found}:
            store.child(name).clear()
        return found

    def store(self) -> MemoryStore:
        """The tier as this process sees it."""
        return MemoryStore([RayHolder(actor) for _, actor in self._holders.values()], ray.put, self._run_id)

    def close(self) -> None:
        for _, actor in self._holders.values():
            ray.kill(actor)
        self._holders = {}

    def _start(self, node: str, name: str) -> Any:
        return (
            ray.remote(Holder)
            .options(
                name=name,
                namespace=self._namespace,
                num_cpus=0,
                max_restarts=-1,  # one whose process dies comes back, empty
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._config.train.memory.budget_mb << 20, own_copy)
        )


def own_copy(data: Bytes) -> list[Any]:
    """A copy in this node's object store that this process owns; in a list, or Ray would send the bytes instead."""
    return [ray.put(np.asarray(data))]
