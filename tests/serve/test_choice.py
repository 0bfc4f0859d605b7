"""Choices as text: end tokens and stop strings stay out of it, usage counts every generated token, streams close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from elasmo.serve.choice import Piece, merge, pieces
from elasmo.serve.tokens import TokenBatch

END = 1


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", "replace")


class Batches:
    """Token batches of a text, one byte a token, and whether their stream was closed."""

    def __init__(self, text: str, group: int = 1, end: bool = True) -> None:
        self._tokens = [*text.encode(), END] if end else [*text.encode()]
        self._finish = "stop" if end else "length"
        self._group = group
        self.closed = False
        self.sent = 0

    async def stream(self) -> AsyncGenerator[TokenBatch, None]:
        try:
            for start in range(0, len(self._tokens), self._group):
                tokens = tuple(self._tokens[start : start + self._group])
                self.sent += len(tokens)
                last = self.sent == len(self._tokens)
                yield TokenBatch(start, tokens, self._finish if last else None)  # type: ignore[arg-type]
        finally:
            self.closed = True


def run(batches: Batches, stop: Sequence[str] = ()) -> list[Piece]:
    async def main() -> list[Piece]:
        return [piece async for piece in pieces(0, batches.stream(), decode, stop)]

    return asyncio.run(main())


@pytest.mark.parametrize("group", [1, 2, 3, 100])
def test_the_end_token_is_counted_but_not_told(group: int) -> None:
    told = run(Batches("héllo", group))
    assert "".join(piece.text for piece in told) == "héllo"
    assert sum(piece.tokens for piece in told) == 7
    assert [piece.finish for piece in told if piece.finish] == ["stop"]


def test_a_length_finish_flushes_what_was_held_back() -> None:
    told = run(Batches("go EN", end=False), stop=["END"])
    assert "".join(piece.text for piece in told) == "go EN"
    assert told[-1].finish == "length"


@pytest.mark.parametrize("group", [1, 3, 100])
def test_a_stop_string_ends_the_choice_and_its_stream(group: int) -> None:
    batches = Batches("one. two. three.", group)
    told = run(batches, stop=[". t"])
    assert "".join(piece.text for piece in told) == "one"
    assert told[-1].finish == "stop"
    assert sum(piece.tokens for piece in told) == 6
    assert batches.closed
    if group == 1:
        assert batches.sent == 6


def test_merged_choices_all_arrive() -> None:
    async def main() -> dict[int, str]:
        texts = {0: "", 1: "", 2: ""}
        streams = [pieces(index, Batches("abc" * (index + 1)).stream(), decode, ()) for index in range(3)]
        async for piece in merge(streams):
            texts[piece.choice] += piece.text
        return texts

    assert asyncio.run(main()) == {0: "abc", 1: "abcabc", 2: "abcabcabc"}


def test_one_failing_choice_ends_the_others() -> None:
    endless = Batches("a" * 100_000)

    async def failing() -> AsyncGenerator[Piece, None]:
        yield Piece(0, "x", 1)
        raise KeyError("broken")

    async def main() -> None:
        with pytest.raises(KeyError, match="broken"):
            async for _ in merge([failing(), pieces(1, endless.stream(), decode, ())]):
                pass
        assert endless.closed

    asyncio.run(main())


def test_closing_the_merge_closes_every_choice() -> None:
    both = [Batches("a" * 1000), Batches("b" * 1000)]

    async def main() -> None:
        stream = merge([pieces(index, batches.stream(), decode, ()) for index, batches in enumerate(both)])
        await anext(stream)
        await stream.aclose()
        assert all(batches.closed for batches in both)

    asyncio.run(main())
