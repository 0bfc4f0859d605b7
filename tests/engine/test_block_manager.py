"""Pages are never lost, written by two, or read before they are computed, whatever the order of what happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elasmo.engine.block_manager import BlockManager
from elasmo.engine.prefix_cache import NaivePrefixCache
from elasmo.engine.radix_cache import RadixCache

BLOCKS, SIZE = 11, 2
NAMES = st.sampled_from("abcde")


class Pages(RuleBasedStateMachine):
    """Two managers, one with the naive cache; what each page holds is written down and checked at every hit."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(BLOCKS, SIZE, RadixCache(SIZE))
        self.oracle = BlockManager(BLOCKS, SIZE, NaivePrefixCache(SIZE))
        self.keys: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.content: dict[int, tuple[int, ...]] = {}  # page -> everything up to its end

    @rule(name=NAMES, keys=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def allocate(self, name: str, keys: list[int]) -> None:
        if name in self.keys:
            with pytest.raises(ValueError, match=f"'{name}' is running already"):
                self.manager.allocate(name, len(keys), keys)
            return
        before = self.manager.free
        hits, held = self.manager.hits(keys)
        assert (hits, held) == self.oracle.hits(keys)
        cached = self.manager.allocate(name, len(keys), keys)
        assert cached == self.oracle.allocate(name, len(keys), keys)
        assert (cached is None) == (self.manager.needed(len(keys)) - held > before)
        if cached is None:
            assert self.manager.free == before
            return
        assert cached == hits * SIZE < len(keys)  # one token is always left to compute
        for at in range(hits):
            assert self.content[self.manager.table(name)[at]] == tuple(keys[: (at + 1) * SIZE])
        self.keys[name], self.computed[name] = keys, cached

    @rule(name=NAMES, tokens=st.integers(1, 5))
    def compute(self, name: str, tokens: int) -> None:
        """Writes tokens into pages, as a chunk does; the last chunk publishes."""
        if name not in self.keys:
            return
        keys, start = self.keys[name], self.computed[name]
        end = min(len(keys), start + tokens)
        table = self.manager.table(name)
        for at in range(start, end):
            others = [page for other in self.keys if other != name for page in self.manager.table(other)]
            assert table[at // SIZE] not in others  # nobody else reads or writes what is written
            self.content[table[at // SIZE]] = tuple(keys[: at + 1])
        self.computed[name] = end
        self.manager.publish(name, keys[:end])
        self.oracle.publish(name, keys[:end])

    @rule(name=NAMES, more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, name: str, more: list[int]) -> None:
        if name not in self.keys:
            return
        wanted = [*self.keys[name], *more]
        before = list(self.manager.table(name))
        done = self.manager.extend(name, len(wanted))
        assert done == self.oracle.extend(name, len(wanted))
        if done:
            self.keys[name] = wanted
        else:
            assert list(self.manager.table(name)) == before

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        for manager in (self.manager, self.oracle):
            manager.release(name)
        self.keys.pop(name, None)
        self.computed.pop(name, None)

    @invariant()
    def every_page_is_somewhere_and_computed_ones_hold_what_they_say(self) -> None:
        held = {page for name in self.keys for page in self.manager.table(name)}
        assert self.manager.free == self.oracle.free == BLOCKS - len(held)
        assert self.manager.cached == self.oracle.cached
        for name, keys in self.keys.items():
            table = self.manager.table(name)
            assert len(table) == len(set(table)) == self.manager.needed(len(keys))
            for at in range(self.computed[name] // SIZE):
                assert self.content[table[at]] == tuple(keys[: (at + 1) * SIZE])

    def teardown(self) -> None:
        for name in list(self.keys):
            self.release(name)
        assert self.manager.free == BLOCKS and self.manager._holders == [0] * BLOCKS
        self.manager.forget()
        assert sorted(self.manager._free) == list(range(BLOCKS)) and self.manager.cached == 0


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 64))
def test_needed_pages_hold_the_tokens_and_no_page_is_spare(tokens: int, size: int) -> None:
    needed = BlockManager(1, size).needed(tokens)
    assert needed * size >= tokens > (needed - 1) * size


def test_the_cache_is_not_emptied_under_a_running_sequence() -> None:
    manager = BlockManager(4, 2, RadixCache(2))
    manager.allocate("a", 4, [1, 2, 3, 4])
    with pytest.raises(ValueError, match="1 sequences hold pages"):
        manager.forget()


def test_of_two_copies_of_the_same_beginning_one_is_kept() -> None:
    manager = BlockManager(4, 2, RadixCache(2))
    for name in "ab":
        manager.allocate(name, 4, [1, 2, 3, 4])
    assert manager.free == 0
    for name in "ab":
        manager.publish(name, [1, 2, 3, 4])
    assert manager.free == 2 and manager.table("a") == manager.table("b")
    assert manager.exclusive("a") == 0
    manager.release("b")
    assert manager.exclusive("a") == 2
