"""Seconds of a piece of work by what they are spent on; they add up and scale."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Cost:
    """Seconds on one rank.

    Attributes:
        matmul: matrix products. attention: fused attention, or its unfused products, softmax and dropout.
        pointwise: norms, activations, residuals, rotations, casts, permutations.
        tp, cp, ep: communication that nothing hides.
    """

    matmul: float = 0.0
    attention: float = 0.0
    pointwise: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0

    @property
    def total(self) -> float:
        return self.matmul + self.attention + self.pointwise + self.tp + self.cp + self.ep

    @property
    def compute(self) -> float:
        return self.matmul + self.attention + self.pointwise

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, factor: float) -> Cost:
        return Cost(*(value * factor for value in astuple(self)))

    def as_dict(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


ZERO = Cost()
