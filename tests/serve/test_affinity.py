"""Prefix affinity: which prompts begin alike, who is believed to have the beginning, and when load overrules it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasmo.model.encoded import Encoded
from elasmo.serve.affinity import BLOCK, PrefixMap, prefer, prefix_digests


def prompt(*tokens: int) -> Encoded:
    return Encoded.of_tokens(np.array(tokens, np.int32), np.zeros(len(tokens), np.uint8))


@given(st.lists(st.integers(0, 3), max_size=80), st.lists(st.integers(0, 3), max_size=80))
def test_digests_agree_exactly_as_far_as_whole_blocks_do(one: list[int], other: list[int]) -> None:
    alike = 0
    while alike < min(len(one), len(other)) and one[alike] == other[alike]:
        alike += 1
    pairs = zip(prefix_digests(prompt(*one)), prefix_digests(prompt(*other)), strict=False)
    assert sum(a == b for a, b in pairs) == alike // BLOCK


def test_other_media_are_another_beginning() -> None:
    text = prompt(*range(40))
    pictures = [replace(text, images=np.full((1, 2, 2, 3), grey, np.uint8)) for grey in (0, 0, 1)]
    same, again, other = map(prefix_digests, pictures)
    assert same == again and not set(same) & {*other, *prefix_digests(text)}


def test_the_replica_with_the_longest_beginning_is_found() -> None:
    known: PrefixMap[str] = PrefixMap(100)
    known.add(prefix_digests(prompt(*range(48))), "a")
    known.add(prefix_digests(prompt(*range(16), *range(100, 132))), "b")
    assert known.find(prefix_digests(prompt(*range(40)))) == ("a", 32)
    assert known.find(prefix_digests(prompt(*range(16), *range(100, 148)))) == ("b", 48)
    assert known.find(prefix_digests(prompt(*range(1, 41)))) == (None, 0)
    assert known.find(()) == (None, 0)


def test_the_oldest_and_longest_beginnings_are_forgotten_first() -> None:
    known: PrefixMap[str] = PrefixMap(4)
    for start in (0, 100):
        known.add(prefix_digests(prompt(*range(start, start + 48))), "a")
    assert known.find(prefix_digests(prompt(*range(100, 148))))[1] == 48
    assert known.find(prefix_digests(prompt(*range(48))))[1] == 16


def test_an_overloaded_or_missing_holder_is_passed_over() -> None:
    assert prefer("a", {"a": 4, "b": 0}, 4) == "a"
    assert prefer("a", {"a": 5, "b": 0}, 4) is None
    assert prefer("a", {"a": 9, "b": 6}, 4) == "a"  # the others are busy too
    assert prefer("a", {"b": 0}, 4) is None
    assert prefer(None, {"b": 0}, 4) is None
