"""Power of an accelerator from how busy it is: an idle floor, products, memory and links, up to its cap.

The shares are of thermal design power, and global: dense products draw it nearly all, streaming memory about half.
"""

from __future__ import annotations

from elasmo.simulate.accelerator import Accelerator

IDLE, PRODUCTS, MEMORY, LINKS = 0.15, 0.75, 0.40, 0.20


def power_w(chip: Accelerator, products: float, memory: float, links: float) -> float | None:
    """Mean power. The arguments are shares of the time in which each is busy at full rate; None: no known power."""
    if chip.power_w is None:
        return None
    asked = chip.power_w * (IDLE + PRODUCTS * products + MEMORY * memory + LINKS * links)
    return min(asked, chip.power_cap_w or chip.power_w)
