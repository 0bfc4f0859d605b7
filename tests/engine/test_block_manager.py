"""Pages are never lost and never shared, whatever the order of admissions and ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elasmo.engine.block_manager import BlockManager

BLOCKS, SIZE = 11, 4


class Pages(RuleBasedStateMachine):
    """Random admissions and releases beside a dictionary of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(BLOCKS, SIZE)
        self.held: dict[str, tuple[int, ...]] = {}

    @rule(name=st.sampled_from("abcde"), tokens=st.integers(1, 30))
    def allocate(self, name: str, tokens: int) -> None:
        if name in self.held:
            with pytest.raises(ValueError, match=f"'{name}' is running already"):
                self.manager.allocate(name, tokens)
            return
        wanted = len(range(0, tokens, SIZE))
        free = BLOCKS - sum(len(pages) for pages in self.held.values())
        pages = self.manager.allocate(name, tokens)
        if wanted > free:
            assert pages is None
        else:
            assert pages is not None and len(pages) == wanted
            self.held[name] = pages

    @rule(name=st.sampled_from("abcdef"))
    def release(self, name: str) -> None:
        self.manager.release(name)
        self.held.pop(name, None)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        owned = [page for pages in self.held.values() for page in pages]
        assert len(owned) == len(set(owned)) and set(owned) <= set(range(BLOCKS))
        assert self.manager.free == BLOCKS - len(owned)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 64))
def test_needed_pages_hold_the_tokens_and_no_page_is_spare(tokens: int, size: int) -> None:
    needed = BlockManager(1, size).needed(tokens)
    assert needed * size >= tokens > (needed - 1) * size
