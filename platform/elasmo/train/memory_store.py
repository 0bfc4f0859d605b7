"""A store of checkpoints whose files lie in memory, in one or two holders; behind the interface of every other store.

A file is written once every holder that answers has a copy, and read from the first that has it. The manifest comes
last here too: a checkpoint is in memory whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
T = TypeVar("T")
SCHEME = "ray-memory://"


class HolderLost(OSError):
    """A holder whose process or node is gone."""


class Client(Protocol):
    """One holder, as seen from another process. Every method raises `HolderLost` if it is gone."""

    def hold(self, place: str, name: str, shared: Any) -> Callable[[], None]:
        """Begins to copy what `share` gave into the holder; the answer waits until it is there, or raises."""

    def fetch(self, place: str, name: str) -> Bytes | None:
        """A file, None if there is none."""

    def files(self, place: str) -> dict[str, int]:
        """Names and sizes of the files in a place."""

    def children(self, place: str) -> list[str]:
        """Names directly below a place."""

    def remove(self, place: str, name: str) -> None:
        """Removes a file, if there is one."""

    def clear(self, place: str) -> None:
        """Removes a place and all below it."""


class MemoryStore:
    """Implements `elasmo.model.stores.Store`.

    Args:
        clients: the holders; one that is lost is left out from then on.
        share: makes an array reachable for all holders at once.
        path: the place in each holder.
    """

    def __init__(self, clients: Sequence[Client], share: Callable[[Bytes], Any], path: str) -> None:
        self._clients, self._share, self._path = list(clients), share, path
        self._read: dict[str, Bytes] = {}

    @property
    def url(self) -> str:
        return SCHEME + self._path

    @property
    def name(self) -> str:
        return self._path.rsplit("/", 1)[-1]

    @property
    def copies(self) -> int:
        """Holders that answered so far."""
        return len(self._clients)

    def child(self, name: str) -> MemoryStore:
        child = MemoryStore((), self._share, f"{self._path}/{name}")
        child._clients = self._clients  # one list: what is lost for one is lost for all
        return child

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        data = bytearray()
        for chunk in chunks:
            data += chunk
        self._hold(name, np.frombuffer(data, np.uint8))
        return len(data)

    def put(self, name: str, data: bytes) -> None:
        self._hold(name, np.frombuffer(data, np.uint8))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        if name not in self._read:
            held = (data for data in self._each(lambda client: client.fetch(self._path, name)) if data is not None)
            data = next(held, None)
            if data is None:
                raise FileNotFoundError(f"{self.url}/{name}")
            self._read[name] = data  # once from the other node, however many parts are wanted of it
        return self._read[name][start:stop].tobytes()

    def size(self, name: str) -> int:
        for files in self._each(lambda client: client.files(self._path)):
            if name in files:
                return files[name]
        raise FileNotFoundError(f"{self.url}/{name}")

    def files(self) -> list[str]:
        return sorted({name for files in self._each(lambda client: client.files(self._path)) for name in files})

    def children(self) -> list[str]:
        return sorted({name for found in self._each(lambda client: client.children(self._path)) for name in found})

    def remove(self, name: str) -> None:
        list(self._each(lambda client: client.remove(self._path, name)))

    def clear(self) -> None:
        list(self._each(lambda client: client.clear(self._path)))

    def _hold(self, name: str, data: Bytes) -> None:
        self._read.pop(name, None)
        shared = self._share(data)
        begun = [(client, client.hold(self._path, name, shared)) for client in self._clients]  # both at once
        for client, finished in begun:
            try:
                finished()
            except HolderLost:
                self._clients.remove(client)
        if not self._clients:
            raise OSError(f"{self.url}/{name}: no holder of the memory tier is left.")

    def _each(self, ask: Callable[[Client], T]) -> Iterator[T]:
        """What every holder answers, one after the other; one that is lost is left out from now on."""
        for client in list(self._clients):
            try:
                yield ask(client)
            except HolderLost:
                self._clients.remove(client)
