"""Hands out KV pages: a sequence gets all the pages it may ever need when it is admitted, and gives them back once."""

from __future__ import annotations


class BlockManager:
    """A free list of page numbers.

    Reserving a sequence's whole length at admission means that no admitted sequence can ever run out of pages.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._held: dict[str, tuple[int, ...]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.block_size)

    def allocate(self, request_id: str, tokens: int) -> tuple[int, ...] | None:
        """Pages for a sequence of up to `tokens` tokens, or None if there are too few now.

        Raises:
            ValueError: the sequence holds pages already.
        """
        if request_id in self._held:
            raise ValueError(f"Request {request_id!r} is running already; give every request its own id.")
        count = self.needed(tokens)
        if count > len(self._free):
            return None
        pages = tuple(self._free.pop() for _ in range(count))
        self._held[request_id] = pages
        return pages

    def release(self, request_id: str) -> None:
        """Frees a sequence's pages; a sequence that holds none is ignored."""
        self._free.extend(reversed(self._held.pop(request_id, ())))
