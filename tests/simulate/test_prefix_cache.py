from __future__ import annotations

from elasmo.simulate.prefix_cache import PrefixCache


def test_only_leading_blocks_count() -> None:
    cache = PrefixCache()
    cache.add((1, 2, 3), 10)
    assert (cache.held((1, 2, 9)), cache.held((2, 3)), cache.held((9, 1))) == (2, 2, 0)


def test_the_end_of_the_oldest_prompt_goes_first() -> None:
    cache = PrefixCache()
    cache.add((1, 2, 3), 10)
    cache.add((1, 5), 4)
    assert (cache.held((1, 2, 3)), cache.held((1, 5))) == (3, 2)
    cache.shrink(3)
    assert (cache.held((1, 2, 3)), cache.held((1, 5))) == (2, 2)
    cache.shrink(0)
    assert len(cache) == 0
