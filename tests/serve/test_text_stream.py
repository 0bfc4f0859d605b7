"""Incremental text: never half a character, never a piece of a stop string, the same however tokens are grouped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.serve.text_stream import TextStream


def decode(tokens: Sequence[int]) -> str:
    """A byte-level tokenizer in its smallest form: every token is a byte."""
    return bytes(tokens).decode("utf-8", "replace")


def grouped(tokens: Sequence[int], cuts: Iterable[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    return [tokens[start:stop] for start, stop in itertools.pairwise(edges)]


def run(tokens: Sequence[int], cuts: Iterable[int] = (), stop: Sequence[str] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(decode, stop)
    texts = [stream.push(group) for group in grouped(tokens, cuts)]
    return [*texts, stream.finish()], stream


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_joined_pieces_are_the_text_of_all_tokens(data: bytes, cuts: list[int]) -> None:
    pieces, _ = run(list(data), cuts)
    assert "".join(pieces) == decode(list(data))


@given(st.text(max_size=20))
def test_no_piece_has_half_a_character(text: str) -> None:
    data = list(text.encode("utf-8", "ignore"))
    pieces, _ = run(data, range(len(data)))
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


def test_text_goes_out_as_soon_as_it_is_certain() -> None:
    stream = TextStream(decode)
    assert [stream.push([byte]) for byte in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_bytes_that_are_no_utf8_do_not_hold_up_the_stream() -> None:
    stream = TextStream(decode)
    assert stream.push([0xFF] * 10) == "\ufffd" * 9  # the last one could be the start of a character
    assert stream.push([ord("a")]) == "\ufffda"


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 12), max_size=6),
)
def test_stop_strings_cut_at_the_first_one_that_completes(text: str, stop: list[str], cuts: list[int]) -> None:
    pieces, stream = run(list(text.encode()), cuts, stop)
    ends = [(end, text[:end]) for end in range(len(text) + 1) if any(text[:end].endswith(item) for item in stop)]
    if not ends:
        assert "".join(pieces) == text and not stream.stopped
        return
    first_end, head = ends[0]
    longest = max(len(item) for item in stop if head.endswith(item))
    assert "".join(pieces) == head[: first_end - longest]
    assert stream.stopped
    assert stream.used == first_end


def test_what_may_begin_a_stop_string_waits() -> None:
    stream = TextStream(decode, ["END"])
    assert stream.push(list(b"go E")) == "go "
    assert stream.push(list(b"N")) == ""
    assert stream.push(list(b"t")) == "ENt"
    assert stream.push(list(b"EN")) == ""
    assert stream.finish() == "EN"


def test_nothing_comes_after_a_stop_string() -> None:
    stream = TextStream(decode, ["."])
    assert stream.push(list(b"one. two")) == "one"
    assert stream.push(list(b"three")) == ""
    assert stream.finish() == ""


@pytest.mark.parametrize("data", [b"", b"a"])
def test_finish_without_pending_text_is_empty(data: bytes) -> None:
    stream = TextStream(decode)
    stream.push(list(data))
    assert stream.finish() == ""
