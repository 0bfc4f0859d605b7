"""MinHashes estimate the share of shingles that two texts share."""

from __future__ import annotations

import numpy as np

from elasmo.content.text_hash import NUMBERS, SHINGLE, text_hash

WORDS = """
the a patient scan of left lung shows no sign fluid heart size normal small nodule upper lobe follow up
""".split()  # noqa: SIM905


def text(seed: int, words: int = 80) -> list[str]:
    return list(np.random.default_rng(seed).choice(WORDS, words))


def jaccard(left: str, right: str) -> float:
    one, other = ({s[i : i + SHINGLE] for i in range(len(s) - SHINGLE + 1)} for s in (left, right))
    return len(one & other) / len(one | other)


def estimate(left: str, right: str, contexts: tuple[str, str] = ("", "")) -> float:
    one, other = text_hash(left, contexts[0]), text_hash(right, contexts[1])
    assert one is not None and other is not None
    return float((one == other).mean())


def test_the_estimate_is_the_jaccard_similarity_of_shingles_within_its_error() -> None:
    errors, random = [], np.random.default_rng(5)
    for seed in range(1, 120):
        words = text(seed)
        changed = list(words)
        for place in random.choice(len(words), seed % 70 + 1, replace=False):
            changed[place] = f"n{random.integers(10**6)}"
        exact = jaccard(" ".join(words), " ".join(changed))
        error = np.sqrt(exact * (1 - exact) / NUMBERS)
        errors.append((estimate(" ".join(words), " ".join(changed)) - exact) / error)
    assert np.abs(errors).max() < 4 and abs(np.mean(errors)) < 0.4 and 0.8 < np.std(errors) < 1.2


def test_case_and_spaces_do_not_count() -> None:
    words = text(1)
    assert estimate(" ".join(words), "\n  ".join(words).upper()) == 1.0


def test_a_question_about_another_picture_is_another_text() -> None:
    words = " ".join(text(2))
    assert estimate(words, words, ("a.png", "a.png")) == 1.0 and estimate(words, words, ("a.png", "b.png")) == 0.0


def test_a_short_text_has_no_hash_and_a_long_one_is_read_whole() -> None:
    assert text_hash("x " * 31) is None
    long = " ".join(f"word{number}" for number in range(3000))
    assert estimate(long, long.replace("word2999", "end")) > 0.98
    half = long[: len(long) // 2]
    assert abs(estimate(long, half) - jaccard(long, half)) < 4 * 0.5 / NUMBERS**0.5


def test_lone_surrogates_are_read() -> None:
    assert text_hash("\ud800" * 80) is not None
