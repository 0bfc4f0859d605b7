"""The radix tree knows, forgets and returns exactly what the naive cache does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.engine.prefix_cache import NaivePrefixCache
from elasmo.engine.radix_cache import RadixCache

SIZE = 2
KEYS = st.lists(st.integers(0, 1), max_size=12)  # two keys only, so that beginnings are shared and fork often
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("match"), KEYS),
        st.tuples(st.just("insert"), KEYS),
        st.tuples(st.just("evict"), st.integers(0, 4), st.sets(st.integers(0, 60), max_size=20)),
        st.tuples(st.just("clear")),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(OPERATIONS)
def test_the_tree_does_what_the_naive_cache_does(operations: list[tuple]) -> None:  # type: ignore[type-arg]
    naive, radix = NaivePrefixCache(SIZE), RadixCache(SIZE)
    pages = iter(range(10_000))
    for name, *arguments in operations:
        if name == "insert":
            arguments.append([next(pages) for _ in range(len(arguments[0]) // SIZE)])
        if name == "evict":
            # As the block manager does: whoever holds a block holds those before it. Here: the held prefixes' pages.
            held = arguments[1]
            paths = [path for path in naive._pages if naive._pages[path] in held]
            in_use = {naive._pages[path[:end]] for path in paths for end in range(1, len(path) + 1)}
            arguments[1] = in_use.__contains__
        wanted, got = (getattr(cache, name)(*arguments) for cache in (naive, radix))
        assert (sorted(got) == sorted(wanted)) if name == "clear" else (got == wanted)


def test_a_page_goes_after_those_that_follow_it_and_the_longest_unused_first() -> None:
    cache = RadixCache(1)
    cache.insert("abc", [0, 1, 2])
    cache.insert("abd", [0, 1, 3])
    cache.match("abc")
    assert cache.evict(1, lambda page: False) == [3]
    assert cache.evict(9, lambda page: page == 1) == [2]  # what comes before a page in use stays with it
    assert cache.match("abc") == (0, 1)
    assert cache.evict(9, lambda page: False) == [1, 0]
