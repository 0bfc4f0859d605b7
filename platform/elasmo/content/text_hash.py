"""MinHash of a text: 128 numbers, of which two texts agree in about the share of 5-character shingles they share.

Broder, On the resemblance and containment of documents (1997). A shingle is hashed to 32 bits by MurmurHash3's
finaliser, and from there by 128 random bijections of 32 bits, which is what processors do many of at once. The share of
equal numbers estimates the Jaccard similarity J with standard error sqrt(J(1-J)/128).
"""

from __future__ import annotations

import hashlib
import unicodedata

import numpy as np
from numpy.typing import NDArray

NUMBERS = 128
SHINGLE = 5
SHORTEST = 64
"""Characters below which a text has no hash: one word more or less would decide."""

_RANDOM = np.random.Generator(np.random.Philox(key=20_101)).integers(0, 1 << 32, (2, NUMBERS), dtype=np.uint32)
_FACTORS, _TERMS = _RANDOM[0][:, None] | np.uint32(1), _RANDOM[1][:, None]
_SHINGLES_AT_ONCE = 256  # stays in the cache


def text_hash(text: str, context: str = "") -> NDArray[np.uint32] | None:
    """MinHash of a text, uint32 [128]; None for one shorter than `SHORTEST`.

    Case, runs of spaces and compatibility forms (NFKC) do not count. Texts of different `context` share nothing: a
    question about one picture is not a copy of the same question about another.
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if len(plain) < SHORTEST:
        return None
    seed = int.from_bytes(hashlib.blake2b(context.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
    points = np.frombuffer(plain.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32).astype(np.uint64)
    rolled = np.full(len(points) - SHINGLE + 1, seed, dtype=np.uint64)
    for offset in range(SHINGLE):
        rolled = _mixed(rolled ^ points[offset : offset + len(rolled)])
    shingles = (rolled >> np.uint64(32)).astype(np.uint32)
    least = np.full(NUMBERS, np.iinfo(np.uint32).max, dtype=np.uint32)
    for start in range(0, len(shingles), _SHINGLES_AT_ONCE):
        part = shingles[None, start : start + _SHINGLES_AT_ONCE]
        least = np.minimum(least, ((part ^ _TERMS) * _FACTORS).min(axis=1))
    return least


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads every bit (the finaliser of MurmurHash3)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
