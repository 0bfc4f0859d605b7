"""The buffer between engine steps and stream messages: the first at once, later ones together, none lost."""

from __future__ import annotations

import asyncio

from elasmo.serve.token_buffer import TokenBuffer
from elasmo.serve.tokens import Problem, TokenBatch


def test_the_first_token_does_not_wait_and_carries_the_kv_bytes() -> None:
    async def main() -> None:
        buffer = TokenBuffer(start=3, coalesce_s=60.0, kv_bytes=99)
        buffer.push(7, None)
        assert await asyncio.wait_for(buffer.take(), 1) == TokenBatch(3, (7,), None, 99)

    asyncio.run(main())


def test_later_tokens_share_a_message() -> None:
    async def main() -> None:
        buffer = TokenBuffer(start=0, coalesce_s=0.02, kv_bytes=5)
        buffer.push(1, None)
        await buffer.take()
        take = asyncio.create_task(buffer.take())
        for token in (2, 3, 4):
            buffer.push(token, None)
            await asyncio.sleep(0)
        assert await take == TokenBatch(1, (2, 3, 4))

    asyncio.run(main())


def test_the_end_does_not_wait_for_company() -> None:
    async def main() -> None:
        buffer = TokenBuffer(start=0, coalesce_s=60.0, kv_bytes=0)
        buffer.push(1, None)
        await buffer.take()
        buffer.push(2, None)
        take = asyncio.create_task(buffer.take())
        await asyncio.sleep(0)
        buffer.push(3, "length")
        assert await asyncio.wait_for(take, 1) == TokenBatch(1, (2, 3), "length")

    asyncio.run(main())


def test_tokens_made_before_a_failure_are_taken_before_it() -> None:
    async def main() -> None:
        buffer = TokenBuffer(start=0, coalesce_s=0.0, kv_bytes=0)
        buffer.push(1, None)
        buffer.fail(Problem("replica failed", "broken"))
        assert await buffer.take() == TokenBatch(0, (1,))
        assert await buffer.take() == Problem("replica failed", "broken")

    asyncio.run(main())
