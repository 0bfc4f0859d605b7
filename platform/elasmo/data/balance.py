"""Deals rows into slots and slots onto ranks so that no module of the model waits for one of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SWAPS = 256
"""Exchanges tried at most; each one lowers the sum of squared loads, so there is an end without it too."""


def deal(loads: NDArray[np.float64], hands: int) -> list[list[int]]:
    """Deals items into `hands` groups of near-equal count so that the largest load of any module stays small.

    Greedy, heaviest item first (longest processing time first, Graham 1969), to the group with room where the sum of
    squared loads grows least; then items are exchanged between the group that some module loads most and any other, as
    long as the sum of squared loads falls. Ties go to the lower position, so the result is a function of the input.

    Args:
        loads: float64 [items, modules], each module in units of its mean item.
        hands: number of groups; counts differ by at most one.

    Returns:
        Item positions of each group.
    """
    loads = loads.reshape(len(loads), 1) if loads.ndim == 1 else loads
    groups = _greedy(loads, hands)
    carried = np.array([loads[group].sum(axis=0) for group in groups])
    for _ in range(SWAPS):
        if not _exchange(loads, groups, carried):
            break
    return groups


def _greedy(loads: NDArray[np.float64], hands: int) -> list[list[int]]:
    room = np.array([len(loads) // hands + (1 if hand < len(loads) % hands else 0) for hand in range(hands)])
    groups: list[list[int]] = [[] for _ in range(hands)]
    carried = np.zeros((hands, loads.shape[1]))
    for item in np.argsort(-loads.sum(axis=1), kind="stable"):
        growth = np.where(room > 0, carried @ loads[item], np.inf)
        best = int(np.argmin(growth))
        groups[best].append(int(item))
        carried[best] += loads[item]
        room[best] -= 1
    return groups


def _exchange(loads: NDArray[np.float64], groups: list[list[int]], carried: NDArray[np.float64]) -> bool:
    """Makes the best exchange with the most loaded group; False when none helps."""
    most = int(np.argmax((carried - carried.mean(axis=0)).max(axis=1)))
    best: tuple[float, int, int, int] | None = None
    mine = loads[groups[most]]
    for other, group in enumerate(groups):
        if other == most or not group or not groups[most]:
            continue
        moved = loads[group][None] - mine[:, None]  # what the most loaded group gains, [mine, theirs, modules]
        change = 2 * (moved @ (carried[most] - carried[other]) + (moved**2).sum(axis=2))
        place = int(np.argmin(change))
        value = float(change.flat[place])
        if value < -1e-9 and (best is None or value < best[0] - 1e-12):
            best = value, other, *divmod(place, len(group))
    if best is None:
        return False
    _, other, a, b = best
    gain = loads[groups[other][b]] - loads[groups[most][a]]
    carried[most] += gain
    carried[other] -= gain
    groups[most][a], groups[other][b] = groups[other][b], groups[most][a]
    return True
