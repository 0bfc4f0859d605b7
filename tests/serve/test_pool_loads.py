"""What an ingress knows of its pools: what it sent there, until it is back."""

from __future__ import annotations

import contextlib

import numpy as np

from elasmo.config import ServeConfig
from elasmo.model.encoded import Encoded
from elasmo.serve.pool_loads import PoolLoads
from elasmo.serve.route import Situation


def prompt(start: int, tokens: int = 64) -> Encoded:
    return Encoded.of_tokens(np.arange(start, start + tokens, dtype=np.int32), np.zeros(tokens, np.uint8))


def test_what_is_under_way_counts_until_it_is_back() -> None:
    loads = PoolLoads(ServeConfig(mode="auto", prefill={"replicas": 2}, ingress={"replicas": 3}))
    with loads.prefilling(prompt(0)), loads.decoding(), loads.decoding():
        assert loads.situation(prompt(1000, 8)) == Situation(8, 0, 0, 96.0, 6.0)
    assert loads.situation(prompt(1000, 8)) == Situation(8, 0, 0, 0.0, 0.0)


def test_a_prompt_is_cached_where_it_was_computed_and_nowhere_else() -> None:
    loads = PoolLoads(ServeConfig(mode="auto"))
    with loads.prefilling(prompt(0)), loads.decoding():
        pass
    with loads.decoding(prompt(500)):
        pass
    seen = [loads.situation(prompt(start)) for start in (0, 500)]
    assert [(each.cached_in_prefill, each.cached_in_decode) for each in seen] == [(64, 0), (0, 64)]


def test_a_prefill_that_failed_left_nothing_in_the_cache() -> None:
    loads = PoolLoads(ServeConfig(mode="auto"))
    with contextlib.suppress(KeyError), loads.prefilling(prompt(0)):
        raise KeyError
    assert loads.situation(prompt(0)) == Situation(64, 0, 0, 0.0, 0.0)


def test_without_a_prefix_cache_nothing_is_believed_to_be_cached() -> None:
    loads = PoolLoads(ServeConfig(mode="auto", engine={"prefix_cache": False}))
    with loads.prefilling(prompt(0)), loads.decoding(prompt(0)):
        assert loads.situation(prompt(0)).cached_in_decode == 0


def test_auto_goes_by_the_load() -> None:
    loads = PoolLoads(ServeConfig(mode="auto"))
    assert loads.route(prompt(0, 600)) == "local"
    with loads.decoding():
        assert loads.route(prompt(0, 600)) == "split"
        assert loads.route(prompt(0, 100)) == "local"
    assert PoolLoads(ServeConfig()).route(prompt(0)) == "split"
    assert PoolLoads(ServeConfig(mode="local")).route(prompt(0, 600)) == "local"
