"""Hands out KV pages and counts who holds them: sequences share the pages of a common beginning, and nothing else.

Every page is in one of three states: free; held by one sequence, which may write it; or known to the prefix cache, held
by any number of sequences, which only read it. A known page that nobody holds counts as free: it is forgotten when
its space is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasmo.engine.prefix_cache import Key, PrefixCache


class BlockManager:
    """Pages by sequence.

    Args:
        blocks: pages there are.
        block_size: tokens in a page.
        cache: knows pages by content; None to share nothing.
    """

    def __init__(self, blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._cache = cache
        self._free = list(range(blocks - 1, -1, -1))
        self._holders = [0] * blocks
        self._known: set[int] = set()
        self._idle = 0  # known pages that nobody holds
        self._tables: dict[str, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages that a sequence could have now."""
        return len(self._free) + self._idle

    @property
    def cached(self) -> int:
        """Pages that the prefix cache knows."""
        return len(self._known)

    def needed(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill."""
        return -(-tokens // self.block_size)

    def table(self, request_id: str) -> Sequence[int]:
        """The sequence's pages in order; the last ones may be empty still."""
        return self._tables[request_id]

    def exclusive(self, request_id: str) -> int:
        """Pages that become free when the sequence gives up its own."""
        return sum(self._holders[page] == 1 for page in self._tables[request_id])

    def hits(self, keys: Sequence[Key]) -> tuple[int, int]:
        """Blocks of a prompt that `allocate` would find in the cache, and how many of those somebody holds already."""
        pages = self._matched(keys)
        return len(pages), sum(self._holders[page] > 0 for page in pages)

    def allocate(self, request_id: str, tokens: int, keys: Sequence[Key] = ()) -> int | None:
        """Pages for the first `tokens` tokens of a sequence, known ones where `keys` begin as an earlier prompt did.

        At least one of the keys is left to compute: logits come from computing a token.

        Returns:
            How many tokens are in the pages already, or None, and nothing changes, if there are too few pages now.

        Raises:
            ValueError: the sequence holds pages already.
        """
        if request_id in self._tables:
            raise ValueError(f"Request {request_id!r} is running already; give every request its own id.")
        pages = list(self._matched(keys))
        for page in pages:
            self._hold(page)
        fresh = self._take(self.needed(tokens) - len(pages))
        if fresh is None:
            for page in pages:
                self._drop(page)
            return None
        self._tables[request_id] = pages + fresh
        return len(pages) * self.block_size

    def extend(self, request_id: str, tokens: int) -> bool:
        """Makes room for the first `tokens` tokens of a sequence; False, and nothing changes, if there is none now."""
        fresh = self._take(self.needed(tokens) - len(self._tables[request_id]))
        if fresh is None:
            return False
        self._tables[request_id] += fresh
        return True

    def publish(self, request_id: str, keys: Sequence[Key]) -> None:
        """Lets others share the pages that hold `keys`, which must be computed; a last page that is not full stays own.

        Where another sequence published the same first, its pages take the place of these, which become free.
        """
        if self._cache is None:
            return
        table = self._tables[request_id]
        whole = len(keys) // self.block_size
        for at, page in enumerate(self._cache.insert(keys, table[:whole])):
            if page != table[at]:
                self._hold(page)
                self._drop(table[at])
                table[at] = page
            self._known.add(page)

    def release(self, request_id: str) -> None:
        """Gives up a sequence's pages; a sequence that holds none is ignored."""
        for page in reversed(self._tables.pop(request_id, [])):
            self._drop(page)

    def forget(self) -> None:
        """Empties the prefix cache, as new weights demand.

        Raises:
            ValueError: a sequence holds pages.
        """
        if self._tables:
            raise ValueError(f"{len(self._tables)} sequences hold pages; the cache is emptied when none runs.")
        if self._cache is not None:
            self._free += self._cache.clear()
        self._known.clear()
        self._idle = 0

    def _matched(self, keys: Sequence[Key]) -> tuple[int, ...]:
        return () if self._cache is None or not keys else self._cache.match(keys[: len(keys) - 1])

    def _take(self, count: int) -> list[int] | None:
        if count > self.free:
            return None
        if self._cache is not None and count > len(self._free):
            gone = self._cache.evict(count - len(self._free), lambda page: self._holders[page] > 0)
            self._known.difference_update(gone)
            self._idle -= len(gone)
            self._free += gone
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def _hold(self, page: int) -> None:
        self._idle -= self._holders[page] == 0
        self._holders[page] += 1

    def _drop(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page] == 0:
            if page in self._known:
                self._idle += 1
            else:
                self._free.append(page)
