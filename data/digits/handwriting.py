"""Real scanned digits from scikit-learn's copy of the UCI set, and what can be measured on each of them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NEAR_DUPLICATE = 40  # sum of absolute differences over 64 pixels of 0..16; the closest 5 % of scans are below 46
INK = 4  # a pixel of 4/16 or more counts as inked
EVEN = 0.06  # halves whose ink differs by at most this share of the whole are balanced
LIGHT, BOLD = 29.0, 32.0  # mean ink in percent: about a third of the scans lie below, between and above


@dataclass(frozen=True)
class Scan:
    """One scan: its row in the source, the digit a person wrote, and ink 0..16 as uint8 [8, 8]."""

    row: int
    digit: int
    ink: NDArray[np.uint8]
    group: str

    @property
    def key(self) -> str:
        return f"scan-{self.row:04d}"

    def png(self) -> bytes:
        """8x8 greyscale PNG, ink 0..16 spread over 0..255 (invertible by rounding)."""
        file = io.BytesIO()
        Image.fromarray(np.rint(self.ink * (255 / 16)).astype(np.uint8)).save(file, "PNG", optimize=False)
        return file.getvalue()


def scans(count: int | None = None) -> Iterator[Scan]:
    """The first `count` scans (all 1,797 when None) in source order; near-duplicates share a group."""
    from sklearn.datasets import load_digits

    source = load_digits()
    ink, digits = source.data[:count].astype(np.uint8), source.target[:count]
    for row, (pixels, digit, group) in enumerate(zip(ink, digits, near_duplicates(ink), strict=True)):
        yield Scan(row, int(digit), pixels.reshape(8, 8), f"writing-{group:04d}")


def near_duplicates(ink: NDArray[np.uint8]) -> list[int]:
    """Group of each row of uint8 [rows, 64]: a chain of near-duplicates has one, named for its first row."""
    values = ink.astype(np.int16)
    group = list(range(len(values)))
    for row in range(len(values)):
        distance = np.abs(values[:row] - values[row]).sum(axis=1)
        for other in np.flatnonzero(distance <= NEAR_DUPLICATE):
            merged, kept = sorted((group[row], group[int(other)]), reverse=True)
            if merged != kept:
                group = [kept if member == merged else member for member in group]
    return group


def measure(ink: NDArray[np.uint8]) -> dict[str, float | int | str]:
    """The structured record of a scan, every field computed from its pixels alone.

    Args:
        ink: uint8 [8, 8], 0..16.
    """
    inked = ink >= INK
    columns = np.flatnonzero(inked.any(axis=0))
    percent = round(float(ink.mean()) / 16 * 100, 1)
    return {
        "width": int(columns[-1] - columns[0] + 1),
        "left_edge": int(columns[0] + 1),
        "darkest_row": int(ink.sum(axis=1, dtype=np.int64).argmax() + 1),
        "holes": holes(inked),
        "ink": percent,
        "weight": "light" if percent < LIGHT else "bold" if percent >= BOLD else "medium",
        "heavier_side": _heavier(ink[:, :4], ink[:, 4:], "left", "right"),
        "heavier_end": _heavier(ink[:4], ink[4:], "top", "bottom"),
    }


def holes(inked: NDArray[np.bool_]) -> int:
    """Background regions that ink closes off, bool [height, width]; ink connects diagonally, paper does not."""
    open_paper = np.pad(~inked, 1, constant_values=True)
    regions = 0
    while open_paper.any():
        regions += 1
        stack = [tuple(int(i) for i in np.argwhere(open_paper)[0])]
        while stack:
            row, column = stack.pop()
            inside = 0 <= row < open_paper.shape[0] and 0 <= column < open_paper.shape[1]
            if inside and open_paper[row, column]:
                open_paper[row, column] = False
                stack += [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return regions - 1


def fingerprint() -> str:
    """sha256 of the file that scikit-learn's wheel carries."""
    spec = importlib.util.find_spec("sklearn")  # importing it takes a second, which an unchanged dataset need not pay
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sklearn'", name="scikit-learn")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _heavier(first: NDArray[np.uint8], second: NDArray[np.uint8], if_first: str, if_second: str) -> str:
    one, two = int(first.sum(dtype=np.int64)), int(second.sum(dtype=np.int64))
    if abs(one - two) <= EVEN * (one + two):
        return "balanced"
    return if_first if one > two else if_second
