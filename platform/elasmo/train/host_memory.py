"""Keeps freed host memory in the process: on a CPU a third of a step can go into getting the same pages again."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's `mallopt(3)`."""
_MOST_TRIM, _MOST_MMAP = 2**31 - 1, 32 << 20
"""The largest values that it takes: bytes kept on top of the heap, and bytes from which memory is mapped anew."""


def keep_freed_memory() -> bool:
    """Tells the allocator not to give freed blocks of up to 32 MB back to the system; whether it listened.

    Activations and gradients have the same sizes in every step, so the process grows no further than its peak.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MOST_MMAP) and mallopt(_TRIM_THRESHOLD, _MOST_TRIM))
