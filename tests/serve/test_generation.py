"""One completion over failing replicas: every token once, in order, within the retry budget and the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve.deadline import Deadline, DeadlineExceeded
from elasmo.serve.generation import Attempts, generate
from elasmo.serve.openai_errors import ApiError
from elasmo.serve.route import Route
from elasmo.serve.tokens import KVLost, ReplicaFailed, RequestRefused, TokenBatch

LENGTH = 12
PARAMS = SamplingParams(max_tokens=LENGTH, seed=5)
EXPECTED = [1000 * PARAMS.seed + index for index in range(LENGTH)]


class ScriptedPools:
    """Pools whose token i is 1000 * seed + i and whose n-th decode call fails as the script says.

    The script has, for each decode call, how many tokens it sends before it raises what.
    """

    def __init__(
        self, script: Sequence[tuple[int, Exception | None]], prefill_errors: Sequence[Exception] = ()
    ) -> None:
        self._script: Iterator[tuple[int, Exception | None]] = iter(script)
        self._prefill_errors = iter(prefill_errors)
        self.prefills = 0
        self.where: Route = "split"
        self.used_kv: list[int] = []
        self.closed = 0

    def route(self, prompt: Encoded) -> Route:
        return self.where

    def local(
        self, prompt: Encoded, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        return self.decode(0, params, sent, deadline)

    async def prefill(self, prompt: Encoded, params: SamplingParams, deadline: Deadline) -> int:
        for error in self._prefill_errors:
            raise error
        self.prefills += 1
        return self.prefills

    async def decode(
        self, kv: int, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        self.used_kv.append(kv)
        budget, error = next(self._script, (LENGTH, None))
        position = len(sent)
        assert list(sent) == EXPECTED[:position]
        try:
            while position < params.max_tokens:
                if budget == 0 and error is not None:
                    raise error
                size = min(2, budget, params.max_tokens - position) or 1
                tokens = tuple(1000 * params.seed + index for index in range(position, position + size))
                finish = "length" if position + size == params.max_tokens else None
                yield TokenBatch(position, tokens, finish, kv_bytes=8 if position == len(sent) else 0)
                position += size
                budget -= size
        finally:
            self.closed += 1


def prompt() -> Encoded:
    return Encoded.of_tokens(np.array([3, 4], np.int32), np.zeros(2, np.uint8))


async def collect(
    pools: ScriptedPools, retries: int, attempts: Attempts | None = None, deadline: Deadline | None = None
) -> list[int]:
    tokens: list[int] = []
    async for batch in generate(
        pools, prompt(), PARAMS, deadline or Deadline(10), retries, attempts or Attempts(), lambda failures: 0.0
    ):
        assert batch.start == len(tokens)
        tokens += batch.tokens
    return tokens


FAILURES = st.sampled_from([ReplicaFailed("died"), KVLost("node died")])


@given(st.lists(st.tuples(st.integers(0, LENGTH - 1), FAILURES), max_size=4))
def test_the_stream_is_the_undisturbed_one_whatever_fails(script: list[tuple[int, Exception]]) -> None:
    attempts = Attempts()
    assert asyncio.run(collect(ScriptedPools(script), retries=4, attempts=attempts)) == EXPECTED


def test_a_dead_decode_replica_costs_no_second_prefill() -> None:
    pools, attempts = ScriptedPools([(3, ReplicaFailed("died")), (0, ReplicaFailed("died"))]), Attempts()
    assert asyncio.run(collect(pools, 3, attempts)) == EXPECTED
    assert pools.used_kv == [1, 1, 1]
    assert (attempts.prefills, attempts.decodes, attempts.retries) == (1, 3, 2)
    assert attempts.kv_bytes == 16  # the second call failed before it took the KV over


def test_lost_kv_is_made_again() -> None:
    pools = ScriptedPools([(5, KVLost("node died"))])
    assert asyncio.run(collect(pools, 1)) == EXPECTED
    assert pools.used_kv == [1, 2]


def test_a_prefill_that_fails_is_tried_again() -> None:
    pools = ScriptedPools([], prefill_errors=[ReplicaFailed("died")])
    assert asyncio.run(collect(pools, 1)) == EXPECTED


def test_the_retry_budget_is_a_bound() -> None:
    pools = ScriptedPools([(1, ReplicaFailed("the decode replica died"))] * 10)
    with pytest.raises(ApiError) as caught:
        asyncio.run(collect(pools, retries=2))
    assert caught.value.status == 503
    assert "3 attempts" in caught.value.message and "the decode replica died" in caught.value.message
    assert len(pools.used_kv) == 3


def test_a_local_completion_goes_on_without_a_prefill() -> None:
    pools, attempts = ScriptedPools([(3, ReplicaFailed("died")), (2, ReplicaFailed("died"))]), Attempts()
    pools.where = "local"
    assert asyncio.run(collect(pools, 2, attempts)) == EXPECTED
    assert (pools.prefills, attempts.prefills, attempts.retries, attempts.local) == (0, 0, 2, True)


def test_a_refusal_is_final() -> None:
    pools = ScriptedPools([(0, RequestRefused("never fits"))])
    with pytest.raises(RequestRefused, match="never fits"):
        asyncio.run(collect(pools, retries=3))
    assert len(pools.used_kv) == 1


def test_a_gap_in_a_replicas_stream_is_not_passed_on() -> None:
    class Skipping(ScriptedPools):
        async def decode(
            self, kv: int, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
        ) -> AsyncGenerator[TokenBatch, None]:
            async for batch in super().decode(kv, params, sent, deadline):
                if batch.start != 4 or len(self.used_kv) > 1:
                    yield batch

    assert asyncio.run(collect(Skipping([]), retries=1)) == EXPECTED


def test_waiting_for_a_replacement_ends_at_the_deadline() -> None:
    pools = ScriptedPools([(1, ReplicaFailed("died"))] * 99)

    async def main() -> None:
        async for _ in generate(pools, prompt(), PARAMS, Deadline(0.05), 99, Attempts(), lambda failures: 0.02):
            pass

    with pytest.raises(DeadlineExceeded) as caught:
        asyncio.run(main())
    assert "replacement" in caught.value.waiting_for


def test_closing_the_stream_closes_the_replicas_call() -> None:
    pools = ScriptedPools([])

    async def main() -> None:
        async with aclosing(generate(pools, prompt(), PARAMS, Deadline(10), 0, Attempts())) as stream:
            await anext(stream)
        assert pools.closed == 1

    asyncio.run(main())
