"""Samples of uneven length in sequences of equal length: what padding wastes, what packing fills, what ranks wait for.

A distribution stands for the data: lengths are log-normal with a mean and a spread (standard deviation over mean); the
media of a sample have a mean, which the model's towers say, and a spread. Everything else is counted from it.
"""

from __future__ import annotations

import bisect
import math
import re
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

POINTS = 2000
"""Lengths of equal probability that stand for the distribution."""


class SamplesError(ValueError):
    """A distribution that cannot be, with what can."""


@dataclass(frozen=True)
class Samples:
    """Samples as they come.

    Attributes:
        mean: tokens of a sample, media included.
        spread: standard deviation of that over the mean.
        media_spread: of the media of a sample, over their mean.
    """

    mean: float
    spread: float = 0.0
    media_spread: float = 0.0

    def __post_init__(self) -> None:
        if self.mean < 1 or self.spread < 0 or self.media_spread < 0:
            raise SamplesError(
                f"samples mean={self.mean:g}, spread={self.spread:g}, media={self.media_spread:g}: the mean must be at "
                "least 1, the spreads at least 0."
            )

    @cached_property
    def lengths(self) -> tuple[float, ...]:
        """`POINTS` lengths in whole tokens, shortest first, scaled to the mean."""
        sigma = math.sqrt(math.log(1 + self.spread**2))
        raw = [math.exp(sigma * NormalDist().inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS)]
        scale = self.mean * POINTS / sum(raw)
        return tuple(max(1.0, round(length * scale)) for length in raw)

    @property
    def tokens(self) -> float:
        """Tokens of a sample, of the lengths that stand for the distribution."""
        return sum(self.lengths) / POINTS

    def pieces(self, seq: int) -> list[float]:
        """The samples cut to sequences of at most `seq` tokens."""
        found: list[float] = []
        for length in self.lengths:
            whole, rest = divmod(length, seq)
            found += [float(seq)] * int(whole) + ([rest] if rest else [])
        return found

    def padded(self, seq: int) -> float:
        """Share of `seq` that a piece fills when every piece has a sequence to itself."""
        pieces = self.pieces(seq)
        return sum(pieces) / len(pieces) / seq

    def packed(self, seq: int) -> float:
        """Share of `seq` that is filled when pieces share sequences, the best fit first, the longest piece first."""
        room: list[float] = []  # left in each open sequence, least first
        count = 0
        pieces = sorted(self.pieces(seq), reverse=True)
        for piece in pieces:
            at = bisect.bisect_left(room, piece)
            if at == len(room):
                count += 1
                left = seq - piece
            else:
                left = room.pop(at) - piece
            bisect.insort(room, left)
        return sum(pieces) / (count * seq)

    def attended(self, seq: int) -> float:
        """Tokens of the piece that a token is in, the mean over tokens."""
        pieces = self.pieces(seq)
        return sum(piece * piece for piece in pieces) / sum(pieces)


def parse_samples(text: str) -> Samples:
    """`mean=900,spread=0.5,media=0.25`.

    Raises:
        SamplesError: not of that form.
    """
    given: dict[str, float] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(mean|spread|media)\s*=\s*(\d+(?:\.\d+)?)\s*", part)
        if found is None:
            raise SamplesError(
                f"samples={text} is not of the form mean=900,spread=0.5,media=0.25 (tokens; standard deviations over "
                "means)."
            )
        given[found[1]] = float(found[2])
    if "mean" not in given:
        raise SamplesError(f"samples={text} has no mean; give the tokens of a sample, such as mean=900.")
    return Samples(given["mean"], given.get("spread", 0.0), given.get("media", 0.0))
