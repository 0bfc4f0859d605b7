"""Packs the rows of a step into slots under caps on tokens, so that no micro-batch is too large for a rank's memory.

The rows stay those of the step; how many slots there are, and of how many rows, follows from the rows' sizes. It is a
function of the rows alone: every rank finds the same slots without asking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class PackingError(ValueError):
    """A row that no slot has room for, in a sentence."""


@dataclass(frozen=True)
class Caps:
    """Most tokens of a slot; None for no cap.

    Attributes:
        decoder: tokens of the packed row that the decoder reads.
        encoders: tokens of all encoders together.
    """

    decoder: int | None = None
    encoders: int | None = None

    def __bool__(self) -> bool:
        return self.decoder is not None or self.encoders is not None

    def check(self, costs: NDArray[np.integer], row_ids: NDArray[np.int64]) -> None:
        """Refuses rows that exceed a cap by themselves; raises PackingError."""
        for name, cap, sizes in (
            ("decoder", self.decoder, costs[:, 0]),
            ("encoder", self.encoders, costs[:, 1:].sum(axis=1, dtype=np.int64)),
        ):
            if cap is None or not len(sizes):
                continue
            largest = int(np.argmax(sizes))
            if sizes[largest] > cap:
                key = {"decoder": "slot_tokens", "encoder": "slot_encoder_tokens"}[name]
                raise PackingError(
                    f"train.{key}={cap}, but row {row_ids[largest]} alone has {sizes[largest]} {name} tokens "
                    f"({int((sizes > cap).sum())} rows have more than {cap}); raise it, or leave long rows out of gold."
                )


NO_CAPS = Caps()


def pack(costs: NDArray[np.float64], loads: NDArray[np.float64], fewest: int, caps: Caps) -> list[list[int]]:
    """Packs rows into as few slots as hold them, from `fewest` on, or one a row.

    Rows are placed largest first: into the slot with room where the sum of squared loads grows least, which keeps slots
    even, or, where that leaves a row without room, into the fullest slot that has room (best fit decreasing, Johnson
    1973), which needs at most 11/9 of the fewest possible slots and one more. Ties go to the lower number.

    Args:
        costs: float64 [rows, modules], tokens, the decoder's first; no row exceeds a cap, of which there is one.
        loads: float64 [rows, modules], what is to be even, each module in units of its mean row.

    Returns:
        Row positions of each slot.
    """
    limits = ((caps.decoder, costs[:, 0]), (caps.encoders, costs[:, 1:].sum(axis=1)))
    sizes = np.stack([tokens for cap, tokens in limits if cap is not None], axis=1)
    room = np.array([cap for cap, _ in limits if cap is not None], dtype=np.float64)
    order = np.argsort(-(sizes / room).max(axis=1), kind="stable")
    slots = max(fewest, int(np.ceil((sizes.sum(axis=0) / room).max())))
    while True:
        for evenly in (True, False):
            groups = _place(order, sizes, loads, slots, room, evenly)
            if groups is not None:
                return groups
        slots += 1


def _place(
    order: NDArray[np.int64],
    sizes: NDArray[np.float64],
    loads: NDArray[np.float64],
    slots: int,
    room: NDArray[np.float64],
    evenly: bool,
) -> list[list[int]] | None:
    """Rows of each slot, without slots that got none; None where a row finds no room."""
    left = np.tile(room, (slots, 1))
    carried = np.zeros((slots, loads.shape[1]))
    groups: list[list[int]] = [[] for _ in range(slots)]
    for row in order:
        fits = (left >= sizes[row]).all(axis=1)
        if not fits.any():
            return None
        wish = carried @ loads[row] if evenly else (left / room).min(axis=1)
        rows = np.array([len(group) for group in groups])
        slot = int(np.lexsort((rows, np.where(fits, wish, np.inf)))[0])
        groups[slot].append(int(row))
        left[slot] -= sizes[row]
        carried[slot] += loads[row]
    return [group for group in groups if group]
