"""Log-mel spectrograms in numpy: ours, normalised clip by clip, and Whisper's as its feature extractor makes them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elasmo.config import AudioConfig

FLOOR = 1e-6
BORDER = 2
"""Frames after a Whisper clip that its last position sees through the convolutions; they travel with the clip."""
SHORTEST = 3
"""Frames of the shortest Whisper clip: fewer would give no audio token."""

Mel = NDArray[np.float16] | NDArray[np.float32]


def mel_features(samples: NDArray[np.float32], config: AudioConfig) -> Mel:
    """What the audio tower of this config takes of a clip, [frames, n_mels]."""
    return log_mel(samples, config) if config.kind == "strided" else whisper_mel(samples, config)


def whisper_mel(samples: NDArray[np.float32], config: AudioConfig) -> NDArray[np.float32]:
    """Whisper's log-mel frames (Radford et al. 2022, section 2.2), float32 [frames + BORDER, n_mels].

    frames = ceil(samples / hop), at least SHORTEST. Whisper sees a whole window, the clip and silence after it. Its
    convolutions and the windows of the Fourier transform reach over the clip's end, so the two frames that follow the
    clip are part of the features: with them the rest of the window, which attention masks, need not be computed. Where
    the window ends there is nothing to follow; those frames are zeros, as the convolution's own padding is.
    """
    frames = max(SHORTEST, -(-len(samples) // config.hop))
    window = config.window_frames * config.hop
    filled = np.pad(samples, (0, max(0, min(window, (frames + BORDER) * config.hop + config.n_fft) - len(samples))))
    padded = np.pad(filled, config.n_fft // 2, mode="reflect").astype(np.float64)
    computed = min(frames + BORDER, config.window_frames)
    starts = np.arange(computed) * config.hop
    windows = np.lib.stride_tricks.sliding_window_view(padded, config.n_fft)[starts] * _hann(config.n_fft)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    logs = np.log10(np.maximum(power @ _slaney_filters(config.sample_rate, config.n_fft, config.n_mels), 1e-10))
    features = np.zeros((frames + BORDER, config.n_mels), np.float32)
    features[:computed] = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return features


def whisper_tokens(frames: int, pool: bool = True) -> int:
    """Audio tokens of a clip of mel frames: a convolution of stride 2, then, with `pool`, pairs averaged."""
    positions = (frames - 1) // 2 + 1
    return positions // 2 if pool else positions


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


@lru_cache
def _slaney_filters(sample_rate: int, n_fft: int, n_mels: int) -> NDArray[np.float64]:
    """Triangular filters of equal area on Slaney's mel scale, float64 [n_fft // 2 + 1, n_mels].

    The scale is linear below 1 kHz, 3 mels for 200 Hz, and logarithmic above, 27 mels for a factor of 6.4.
    """
    step, knee = 200.0 / 3.0, 15.0
    log_step = np.log(6.4) / 27.0
    top = knee + np.log(sample_rate / 2 / 1000.0) / log_step
    mels = np.linspace(0.0, top, n_mels + 2)
    edges = np.where(mels < knee, mels * step, 1000.0 * np.exp(log_step * (mels - knee)))
    bins = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    filters: NDArray[np.float64] = np.clip(np.minimum(rising, falling), 0.0, None) * 2.0 / (edges[2:] - edges[:-2])
    return filters
