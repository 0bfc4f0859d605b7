"""Boxes of tensors: [start, stop) along each dimension, their volumes and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

Box = tuple[tuple[int, int], ...]
"""[start, stop) along each dimension of a full tensor."""


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
    return tuple((0, size) for size in shape)


def volume(box: Box) -> int:
    """Elements in a box."""
    return math.prod(high - low for low, high in box)


def intersection(a: Box, b: Box) -> Box | None:
    """What two boxes of a tensor have in common, None if nothing."""
    common = tuple((max(low, lower), min(high, upper)) for (low, high), (lower, upper) in zip(a, b, strict=True))
    return common if all(low < high for low, high in common) else None


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies in a tensor that holds `outer`."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, outer, strict=True))
