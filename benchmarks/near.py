"""Rows a second of hashing and of finding near rows: `python benchmarks/near.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from elasmo.content.language import language_of
from elasmo.content.near import Likeness, Pictures, Texts, first_near
from elasmo.content.picture_hash import picture_hash
from elasmo.content.text_hash import text_hash

ROUNDS = 3


def rate(rows: int, work: Callable[[], object]) -> str:
    """Rows a second: median of the rounds (range)."""
    rates = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        rates.append(rows / (time.perf_counter() - begun))
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


def planted(hashes: np.ndarray) -> np.ndarray:
    """One row in twenty is a near copy of another one."""
    count = len(hashes) // 20
    copies = hashes[:count].copy()
    copies.reshape(count, -1)[:, 0] ^= np.array(1, dtype=hashes.dtype)
    hashes[-count:] = copies
    return hashes


def main() -> None:
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(5000)]
    texts = [" ".join(random.choice(words, 100)) for _ in range(1000)]
    pixels = random.integers(0, 255, (224, 224, 3), dtype=np.uint8)
    print("hash of a picture of 224x224:", rate(500, lambda: [picture_hash(pixels) for _ in range(500)]))
    print("hash of a text of 580 characters:", rate(1000, lambda: [text_hash(text) for text in texts]))
    print("language of a text of 580 characters:", rate(1000, lambda: [language_of(text, 0.5) for text in texts]))
    for count in (10_000, 100_000, 1_000_000):
        pictures: np.ndarray = planted(random.integers(0, 1 << 64, count, dtype=np.uint64))
        search(f"{count:,} pictures", pictures, Pictures(4))
    for count in (10_000, 100_000, 400_000):
        numbers: np.ndarray = planted(random.integers(0, 1 << 32, (count, 128), dtype=np.uint32))
        search(f"{count:,} texts", numbers, Texts(0.2))


def search(what: str, hashes: np.ndarray, likeness: Likeness) -> None:
    found = (first_near(hashes, likeness) >= 0).sum()
    print(f"finding {found:,} near ones among {what}:", rate(len(hashes), lambda: first_near(hashes, likeness)))


if __name__ == "__main__":
    main()
