"""Log-mel spectrograms in numpy: HTK mel scale, Hann window, each clip normalised to mean 0 and deviation 1."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elasmo.config import AudioConfig

FLOOR = 1e-6


def log_mel(samples: NDArray[np.float32], config: AudioConfig) -> NDArray[np.float16]:
    """Log-mel frames, float16 [frames, n_mels]; frames = ceil(samples / hop), at least one.

    The mel scale is HTK's, 2595 log10(1 + f / 700). Normalising over the clip removes loudness.
    """
    frames = max(1, -(-len(samples) // config.hop))
    padded = np.pad(samples, (config.n_fft // 2, frames * config.hop + config.n_fft - len(samples)))
    starts = np.arange(frames) * config.hop
    windows = np.lib.stride_tricks.sliding_window_view(padded, config.n_fft)[starts] * _hann(config.n_fft)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    logs = np.log(power @ _filters(config.sample_rate, config.n_fft, config.n_mels) + FLOOR)
    normal: NDArray[np.float16] = ((logs - logs.mean()) / (logs.std() + 1e-3)).astype(np.float16)
    return normal


@lru_cache
def _hann(size: int) -> NDArray[np.float32]:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)


@lru_cache
def _filters(sample_rate: int, n_fft: int, n_mels: int) -> NDArray[np.float32]:
    """Triangular filters, float32 [n_fft // 2 + 1, n_mels]."""
    top = 2595.0 * np.log10(1.0 + sample_rate / 2 / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, top, n_mels + 2) / 2595.0) - 1.0)
    bins = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return np.clip(np.minimum(rising, falling), 0.0, None).astype(np.float32)
