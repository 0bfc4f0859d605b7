"""Holds the files of recent checkpoints in memory on one node, under a budget that it never exceeds.

In a run it is an actor that owns its own copy of every file in its node's object store: Ray frees what a process owns
when the process dies, so what a trainer owned would go with the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HolderFull(ValueError):
    """A file that would exceed the budget, said in a sentence."""


class Holder:
    """Files by place and name.

    Args:
        budget_bytes: most bytes of all files together.
        own: turns a file's bytes into what this holder keeps of them.
    """

    def __init__(self, budget_bytes: int, own: Callable[[Any], Any]) -> None:
        self._budget, self._own = budget_bytes, own
        self._places: dict[str, dict[str, tuple[int, Any]]] = {}

    @property
    def bytes(self) -> int:
        return sum(size for files in self._places.values() for size, _ in files.values())

    def hold(self, place: str, name: str, data: Any) -> None:
        """Replaces a file by a copy of `data`, an array of bytes.

        Raises:
            HolderFull: there is no room for it.
        """
        files = self._places.get(place, {})
        replaced = files[name][0] if name in files else 0
        size = len(data)
        if self.bytes - replaced + size > self._budget:
            raise HolderFull(
                f"{place}/{name} has {size / 1e6:.1f} MB, and {(self.bytes - replaced) / 1e6:.1f} of "
                f"{self._budget / 1e6:.1f} MB are taken; two checkpoints must fit: raise train.memory.budget_mb."
            )
        self._places.setdefault(place, {})[name] = (size, self._own(data))

    def fetch(self, place: str, name: str) -> Any | None:
        """What is kept of a file, None if there is none."""
        found = self._places.get(place, {}).get(name)
        return found[1] if found is not None else None

    def files(self, place: str) -> dict[str, int]:
        """Names and sizes of the files in a place."""
        return {name: size for name, (size, _) in self._places.get(place, {}).items()}

    def children(self, place: str) -> list[str]:
        """Names directly below a place."""
        below = (name.removeprefix(f"{place}/") for name in self._places if name.startswith(f"{place}/"))
        return sorted({name.split("/", 1)[0] for name in below})

    def remove(self, place: str, name: str) -> None:
        files = self._places.get(place, {})
        files.pop(name, None)
        if not files:
            self._places.pop(place, None)

    def clear(self, place: str) -> None:
        for name in [name for name in self._places if name == place or name.startswith(f"{place}/")]:
            del self._places[name]
