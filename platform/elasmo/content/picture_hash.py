"""Perceptual hash of a picture: 64 bits that scaling, recompression and small changes of brightness leave as they are.

pHash after Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions (2010), section 3.2.1: the signs
of the 8x8 lowest frequencies of a 32x32 gray picture against their median. A mirrored or a cropped picture is another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

SIDE, LOW = 32, 8
BITS = LOW * LOW
FLAT = 8.0
"""Deviation of gray below which a picture has no hash: nearly one colour, so that noise would decide the signs."""

_WAVES = np.cos(np.pi * np.outer(np.arange(LOW), 2 * np.arange(SIDE) + 1) / (2 * SIDE))


def picture_hash(pixels: NDArray[np.uint8]) -> int | None:
    """Hash of pixels [height, width, channels]; None for a picture of fewer than 32 pixels a side, or a flat one."""
    height, width, channels = pixels.shape
    if min(height, width) < SIDE:
        return None
    image = Pillow.fromarray(pixels[:, :, 0] if channels == 1 else pixels).convert("L")
    small = np.asarray(image.resize((SIDE, SIDE), Pillow.Resampling.BOX), dtype=np.float64)
    if small.std() < FLAT:
        return None
    # `einsum` and not `@`: this runs in a forked process, where a BLAS may wait for threads that are not there.
    low = np.einsum("ik,lk->il", np.einsum("ij,jk->ik", _WAVES, small), _WAVES).ravel()
    signs = low > np.median(low[1:])
    signs[0] = False  # the mean brightness
    return int.from_bytes(np.packbits(signs).tobytes(), "big")
