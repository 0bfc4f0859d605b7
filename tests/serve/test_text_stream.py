"""Incremental text: never half a character, never a piece of a stop string, the same however tokens are grouped."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

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
    assert stream.push([0xFF] * 10) == "\ufffd" * 7  # the last ones could be parts of a character
    assert stream.push([ord("a")]) == "\ufffd" * 3 + "a"


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


@pytest.mark.parametrize("text", ["", "go END on", "ENEND", "EEND", "ENDEND", "END", "ab EN"])
def test_a_stop_string_is_found_however_it_falls_into_tokens(text: str) -> None:
    """huggingface/text-generation-inference#1254: every way to split the text into tokens gives the same answer."""
    wanted = text.partition("END")[0]
    for size in range(1, len(text) + 1):
        for borders in itertools.combinations(range(1, len(text)), size - 1):
            words = [text[start:stop] for start, stop in itertools.pairwise([0, *borders, len(text)])]
            stream = TextStream(lambda ids, words=words: "".join(words[at] for at in ids), ["END"])
            told = "".join(stream.push([at]) for at in range(len(words))) + stream.finish()
            assert told == wanted and stream.stopped == ("END" in text)


def sentencepiece_like() -> Tokenizer:
    """Words with their space, and single bytes for the rest, decoded as Llama's tokenizer decodes."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "▁he", "llo", "a", "▁a"]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@pytest.mark.parametrize("text", ["▁he llo ▁a 🙂🙂 ▁he llo", "é ▁a 삼겹살 llo", "▁ ▁a", "🙂 a €"])
def test_byte_fallback_tokens_give_whole_characters_and_keep_spaces(text: str) -> None:
    """sgl-project/sglang#23082, sgl-project/sglang#31598, ai-dynamo/dynamo#12630: a character of several tokens."""
    tokenizer = sentencepiece_like()
    ids: list[int] = []
    for piece in text.split(" "):
        known = tokenizer.token_to_id(piece)
        ids += [known] if known is not None else list(piece.encode())
    stream = TextStream(tokenizer.decode, before=[tokenizer.token_to_id("a")])
    told = [stream.push([token]) for token in ids]
    assert "".join([*told, stream.finish()]) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in told)
    assert [bool(piece) for piece in told].count(True) >= len(text.split(" ")) - 1  # not held to the end
