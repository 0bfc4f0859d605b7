"""Near rows are those that comparing all with all finds: every one of pictures, nearly every one of texts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from elasmo.content.near import MISSED, NONE, Pictures, Texts, first_near


def by_all_pairs(hashes: NDArray[np.uint64], furthest: int, targets: int | None = None) -> list[int]:
    numbers = [int(value) for value in hashes]
    found = []
    for row, number in enumerate(numbers):
        before = range(row) if targets is None else range(targets if row >= targets else 0)
        found.append(next((b for b in before if (number ^ numbers[b]).bit_count() <= furthest), NONE))
    return found


def clustered(count: int, seed: int) -> NDArray[np.uint64]:
    """Hashes around a few centres at every distance up to a dozen bits, with copies among them."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 1 << 64, 12, dtype=np.uint64)[random.integers(0, 12, count)]
    for row, flips in enumerate(random.integers(0, 13, count)):
        for bit in random.choice(64, flips, replace=False):
            hashes[row] ^= np.uint64(1) << np.uint64(bit)
    return hashes


@pytest.mark.parametrize("furthest", [0, 1, 4, 7, 12])
def test_pictures_are_found_exactly(furthest: int) -> None:
    for seed in range(4):
        hashes = clustered(300, seed)
        assert first_near(hashes, Pictures(furthest)).tolist() == by_all_pairs(hashes, furthest)


def test_held_out_pictures_are_looked_for_among_training_ones_alone() -> None:
    hashes = clustered(300, 9)
    assert first_near(hashes, Pictures(4), 200).tolist() == by_all_pairs(hashes, 4, 200)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_are_near_nothing(count: int) -> None:
    assert first_near(np.zeros(count, dtype=np.uint64), Pictures(4)).tolist() == [NONE] * count


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_texts_at_the_threshold_are_missed_less_often_than_promised(similarity: float) -> None:
    texts = Texts(1 - similarity)
    size = texts.rows_a_band
    assert (1 - similarity**size) ** (128 // size) < MISSED
    random = np.random.default_rng(1)
    hashes = random.integers(0, 1 << 32, (2000, 128), dtype=np.uint32)
    changed = int(np.floor((1 - similarity) * 128))  # numbers that differ in a pair just within the threshold
    hashes[1000:] = hashes[:1000]
    for row in range(1000, 2000):
        hashes[row, random.choice(128, changed, replace=False)] ^= np.uint32(1)
    found = first_near(hashes, texts)
    assert (found[:1000] == NONE).all() and (found[1000:] == np.arange(1000)).mean() > 1 - 3 * MISSED


def test_a_template_filled_in_twenty_thousand_times_is_one_step() -> None:
    """All with all would be 2e8 comparisons."""
    hashes = np.tile(np.random.default_rng(0).integers(0, 1 << 32, 128, dtype=np.uint32), (20_000, 1))
    hashes[:, 0] = np.arange(20_000)
    assert (first_near(hashes, Texts(0.2))[1:] == 0).all()
