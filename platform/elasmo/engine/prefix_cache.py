"""Which KV pages hold which prompt beginnings: the small interface of a prefix cache, and the naive one, the oracle.

A cache knows pages by what they hold, block after block from the beginning of a prompt. It owns nothing and counts no
references; `BlockManager` does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

Key = Hashable
"""What stands at one position of a prompt: a token id, or a medium's digest with the place in it."""


class PrefixCache(Protocol):
    """Pages by content. Only whole blocks of `block_size` keys are known; the rest of a sequence of keys is ignored."""

    def match(self, keys: Sequence[Key]) -> tuple[int, ...]:
        """Pages of the longest known beginning of `keys`, which now counts as used last."""

    def insert(self, keys: Sequence[Key], pages: Sequence[int]) -> tuple[int, ...]:
        """Makes `pages`, one a block, known as the beginning `keys`; where a block is known already, that page stays.

        Returns:
            The pages by which the blocks are known now.
        """

    def evict(self, count: int, in_use: Callable[[int], bool]) -> list[int]:
        """Forgets up to `count` pages that are not in use and returns them.

        Those used longest ago go first; a block goes only after every block that follows it.
        """

    def clear(self) -> list[int]:
        """Forgets every page and returns them."""


def blocks_of(keys: Sequence[Key], block_size: int) -> list[tuple[Key, ...]]:
    """The whole blocks of a sequence of keys."""
    return [tuple(keys[at : at + block_size]) for at in range(0, len(keys) - block_size + 1, block_size)]


class NaivePrefixCache:
    """Every beginning is an entry of its own, and the oldest one is searched for: slow, and plainly right."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pages: dict[tuple[tuple[Key, ...], ...], int] = {}
        self._used: dict[tuple[tuple[Key, ...], ...], int] = {}
        self._tick = 0

    def match(self, keys: Sequence[Key]) -> tuple[int, ...]:
        blocks = tuple(blocks_of(keys, self._block_size))
        self._tick += 1
        found = []
        for end in range(1, len(blocks) + 1):
            if blocks[:end] not in self._pages:
                break
            self._used[blocks[:end]] = self._tick
            found.append(self._pages[blocks[:end]])
        return tuple(found)

    def insert(self, keys: Sequence[Key], pages: Sequence[int]) -> tuple[int, ...]:
        blocks = tuple(blocks_of(keys, self._block_size))[: len(pages)]
        self._tick += 1
        for end in range(1, len(blocks) + 1):
            self._pages.setdefault(blocks[:end], pages[end - 1])
            self._used[blocks[:end]] = self._tick
        return tuple(self._pages[blocks[:end]] for end in range(1, len(blocks) + 1))

    def evict(self, count: int, in_use: Callable[[int], bool]) -> list[int]:
        gone: list[int] = []
        while len(gone) < count:
            last = [
                beginning
                for beginning, page in self._pages.items()
                if not in_use(page)
                and not any(
                    len(other) > len(beginning) and other[: len(beginning)] == beginning for other in self._pages
                )
            ]
            if not last:
                break
            oldest = min(last, key=lambda beginning: self._used[beginning])
            gone.append(self._pages.pop(oldest))
            del self._used[oldest]
        return gone

    def clear(self) -> list[int]:
        pages = list(self._pages.values())
        self._pages.clear()
        self._used.clear()
        return pages
