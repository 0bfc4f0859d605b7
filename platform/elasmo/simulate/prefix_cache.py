"""Which prefixes of prompts a replica still holds: blocks by id, the least recently used one goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class PrefixCache:
    """Blocks of prompts; a block counts only where all before it are held."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, blocks: Iterable[int]) -> int:
        """Leading blocks that are here; they are not touched."""
        count = 0
        for block in blocks:
            if block not in self._blocks:
                break
            count += 1
        return count

    def add(self, blocks: Iterable[int], room: int) -> None:
        """Holds these as the most recently used, in at most `room` blocks."""
        for block in reversed(list(blocks)):  # a prefix outlives what follows it
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        self.shrink(room)

    def shrink(self, room: int) -> None:
        """Drops the least recently used until `room` are left."""
        while len(self._blocks) > max(room, 0):
            self._blocks.popitem(last=False)
