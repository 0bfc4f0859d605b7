"""Mergeable summaries of a stream of values: distributions (KLL), distinct counts (HLL) and category counts.

Counts, minimum and maximum are exact and merge exactly. A distribution of at most `KLL_K` values is exact too; above
that, KLL compacts with random bits that datasketches draws itself and takes no seed for, so two summaries of the same
values differ by up to `RANK_ERROR` in rank. HLL is deterministic, `DISTINCT_ERROR` is its relative standard error; it
counts below some hundred values without one.
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasketches
import numpy as np
from numpy.typing import NDArray

KLL_K = 400
RANK_ERROR = 0.0086
"""Rank error of any interval of a KLL sketch of `KLL_K`, with 99 % confidence (datasketches' own bound)."""
HLL_LG_K = 12
DISTINCT_ERROR = 1.04 / math.sqrt(1 << HLL_LG_K)
MIX_VALUES, MIX_CHARACTERS = 64, 100
"""A column with more distinct values, or a longer one, has no category mix."""


class SketchError(ValueError):
    """Summaries that cannot be merged or read, in one sentence."""


@dataclass(frozen=True)
class Numbers:
    """The distribution of finite numbers.

    Attributes:
        count: finite values.
        not_finite: NaN and infinite values, in nothing else here.
        minimum: smallest value, None without any; an int where the values are.
        maximum: largest value.
        total: sum, None where it is no finite double; its last bits depend on the order of merging.
        sketch: serialized KLL sketch of doubles.
    """

    count: int = 0
    not_finite: int = 0
    minimum: float | int | None = None
    maximum: float | int | None = None
    total: float | None = 0.0
    sketch: bytes = b""

    @classmethod
    def of(cls, values: NDArray[Any]) -> Numbers:
        """Summary of an array of integers or floats."""
        finite = values[np.isfinite(values)]
        if not len(finite):
            return cls(not_finite=len(values))
        kll = datasketches.kll_doubles_sketch(KLL_K)
        kll.update(finite.astype(np.float64))
        low, high, lost = finite.min().item(), finite.max().item(), len(values) - len(finite)
        return cls(len(finite), lost, low, high, _sum(finite.tolist()), kll.serialize())

    @property
    def mean(self) -> float | None:
        """None without values, or where their sum is no finite double."""
        return self.total / self.count if self.count and self.total is not None else None

    def quantiles(self, ranks: Sequence[float]) -> list[float]:
        """Values at normalized ranks in 0..1; empty without values."""
        if not self.count:
            return []
        return [float(value) for value in self._kll().get_quantiles(list(ranks), True)]

    def shares(self, edges: Sequence[float]) -> NDArray[np.float64]:
        """Share of the values in each of the bins (-inf, e0], (e0, e1], ..., (en, inf); edges increase."""
        if not self.count:
            return np.zeros(len(edges) + 1)
        return np.diff(np.concatenate([[0.0], self._kll().get_cdf(list(edges), True)]))

    def merge(self, other: Numbers) -> Numbers:
        if not self.count or not other.count:
            full, empty = (self, other) if self.count else (other, self)
            lost = full.not_finite + empty.not_finite
            return Numbers(full.count, lost, full.minimum, full.maximum, full.total, full.sketch)
        kll = self._kll()
        kll.merge(other._kll())
        return Numbers(
            self.count + other.count,
            self.not_finite + other.not_finite,
            min(_number(self.minimum), _number(other.minimum)),
            max(_number(self.maximum), _number(other.maximum)),
            None if self.total is None or other.total is None else _sum([self.total, other.total]),
            kll.serialize(),
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "sketch": base64.b64encode(self.sketch).decode()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Numbers:
        return cls(**{**tree, "sketch": base64.b64decode(tree["sketch"])})

    def _kll(self) -> Any:
        return datasketches.kll_doubles_sketch.deserialize(self.sketch)


@dataclass(frozen=True)
class Distinct:
    """An estimate of how many values differ: a serialized HLL sketch."""

    sketch: bytes = b""

    @classmethod
    def of(cls, values: Iterable[str]) -> Distinct:
        hll = datasketches.hll_sketch(HLL_LG_K, datasketches.HLL_4)
        for value in values:
            hll.update(value)
        return cls(hll.serialize_compact())

    def estimate(self) -> int:
        """Distinct values; the relative standard error is `DISTINCT_ERROR`."""
        return round(datasketches.hll_sketch.deserialize(self.sketch).get_estimate()) if self.sketch else 0

    def merge(self, other: Distinct) -> Distinct:
        union = datasketches.hll_union(HLL_LG_K)
        for part in (self, other):
            if part.sketch:
                union.update(datasketches.hll_sketch.deserialize(part.sketch))
        return Distinct(union.get_result(datasketches.HLL_4).serialize_compact())

    def to_json(self) -> str:
        return base64.b64encode(self.sketch).decode()

    @classmethod
    def from_json(cls, text: str) -> Distinct:
        return cls(base64.b64decode(text))


@dataclass(frozen=True)
class Mix:
    """Exact counts of each value of a column of few values; `counts` is None where there are too many."""

    counts: Mapping[str, int] | None = field(default_factory=dict)

    @classmethod
    def of(cls, values: Iterable[Hashable]) -> Mix:
        return cls.of_counts(Counter(map(str, values)))

    @classmethod
    def of_counts(cls, counts: Mapping[str, int]) -> Mix:
        """The counts, unless there are too many or a value is too long."""
        if len(counts) > MIX_VALUES or any(len(value) > MIX_CHARACTERS for value in counts):
            return cls(None)
        return cls({value: counts[value] for value in sorted(counts)})

    def merge(self, other: Mix) -> Mix:
        if self.counts is None or other.counts is None:
            return Mix(None)
        return self.of_counts(Counter(self.counts) + Counter(other.counts))

    def to_json(self) -> dict[str, int] | None:
        return None if self.counts is None else dict(self.counts)

    @classmethod
    def from_json(cls, tree: Mapping[str, int] | None) -> Mix:
        return cls(None if tree is None else dict(tree))


def _sum(values: Sequence[float]) -> float | None:
    try:
        return math.fsum(values)
    except OverflowError:
        return None


def _number(value: float | int | None) -> float | int:
    if value is None:
        raise SketchError("A summary that counts values has no minimum or maximum; delete the profile's file.")
    return value
