"""The log-mel spectrogram against a discrete Fourier transform and triangles written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from elasmo.config import AudioConfig
from elasmo.model.mel import BORDER, FLOOR, log_mel, mel_features, whisper_mel

CONFIG = AudioConfig(sample_rate=8_000, n_fft=64, hop=40, n_mels=6)
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 210).astype(np.float32)


def naive_log_mel(samples: np.ndarray, config: AudioConfig) -> np.ndarray:
    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    def hertz(mel: float) -> float:
        return 700 * (10 ** (mel / 2595) - 1)

    size, half = config.n_fft, config.n_fft // 2
    edges = [hertz(mel(config.sample_rate / 2) * i / (config.n_mels + 1)) for i in range(config.n_mels + 2)]
    frames = []
    for start in range(0, len(samples), config.hop):
        window = [
            (samples[i] if 0 <= (i := start - half + n) < len(samples) else 0.0)
            * (0.5 - 0.5 * math.cos(2 * math.pi * n / size))
            for n in range(size)
        ]
        bands = [0.0] * config.n_mels
        for k in range(half + 1):
            power = (
                abs(
                    sum(
                        w * complex(math.cos(a := -2 * math.pi * k * n / size), math.sin(a))
                        for n, w in enumerate(window)
                    )
                )
                ** 2
            )
            frequency = k * config.sample_rate / size
            for band in range(config.n_mels):
                low, top, high = edges[band : band + 3]
                bands[band] += power * max(0.0, min((frequency - low) / (top - low), (high - frequency) / (high - top)))
        frames.append([math.log(band + FLOOR) for band in bands])
    logs = np.array(frames)
    return (logs - logs.mean()) / (logs.std() + 1e-3)


def test_equals_the_formula_written_out() -> None:
    got = log_mel(NOISE, CONFIG)
    wanted = naive_log_mel(NOISE, CONFIG)
    assert got.dtype == np.float16 and got.shape == wanted.shape == (6, 6)
    assert np.abs(got - wanted).max() < 4e-3  # float16


def test_loudness_does_not_matter() -> None:
    quiet = log_mel(NOISE * np.float32(0.05), CONFIG).astype(np.float32)
    assert np.abs(quiet - log_mel(NOISE, CONFIG)).max() < 0.02


@pytest.mark.parametrize(("samples", "frames"), [(0, 1), (1, 1), (40, 1), (41, 2), (80, 2), (81, 3)])
def test_a_clip_has_a_frame_for_every_hop_begun(samples: int, frames: int) -> None:
    assert log_mel(NOISE[:samples], CONFIG).shape == (frames, CONFIG.n_mels)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_silence_and_full_scale_are_finite(level: float) -> None:
    assert np.isfinite(log_mel(np.full(500, level, np.float32), CONFIG)).all()


def test_a_higher_tone_peaks_in_a_higher_band() -> None:
    time = np.arange(4000) / CONFIG.sample_rate
    peaks = [
        int(log_mel(np.sin(2 * np.pi * f * time).astype(np.float32), CONFIG).mean(axis=0).argmax())
        for f in (200, 900, 3000)
    ]
    assert peaks == sorted(set(peaks))


WHISPER = AudioConfig(kind="whisper", sample_rate=16_000, n_fft=400, hop=160, n_mels=80, max_s=2.0, max_positions=100)


def sound(name: str, samples: int) -> np.ndarray:
    random, time = np.random.default_rng(3), np.arange(samples) / 16_000
    made = {
        "noise": random.uniform(-0.9, 0.9, samples),
        "chirp": 0.5 * np.sin(2 * np.pi * (200 + 1500 * time) * time) + random.normal(0, 0.001, samples),
        "whisper": random.normal(0, 3e-6, samples),
        "silence": np.zeros(samples),
    }
    return made[name].astype(np.float32)


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("name", ["noise", "chirp", "whisper", "silence"])
@pytest.mark.parametrize("samples", [700, 1600, 8_111, 31_700, 31_999, 32_000])
def test_whisper_features_equal_the_feature_extractors(name: str, samples: int, n_mels: int) -> None:
    """In a window of 2 s. The two frames after the clip hold its tail and then silence, or lie beyond the window."""
    extractor = WhisperFeatureExtractor(feature_size=n_mels, chunk_length=2)
    made = extractor(sound(name, samples), sampling_rate=16_000, return_attention_mask=True, return_tensors="np")
    wanted = made["input_features"][0].T
    frames = int(made["attention_mask"].sum())
    got = whisper_mel(sound(name, samples), WHISPER.model_copy(update={"n_mels": n_mels}))
    assert got.dtype == np.float32 and got.shape == (frames + BORDER, n_mels)
    inside = min(len(got), 200)
    assert np.abs(got[:inside] - wanted[:inside]).max() < 1e-4
    assert not got[inside:].any()


def test_the_shortest_whisper_clip_is_filled_with_silence() -> None:
    assert whisper_mel(sound("noise", 10), WHISPER).shape == (3 + BORDER, 80)


def test_a_clip_that_outlasts_the_positions_is_refused_with_the_config() -> None:
    with pytest.raises(ValueError, match="max_s=30 exceeds 2, the seconds that max_positions=100"):
        AudioConfig(**{**WHISPER.model_dump(), "max_s": 30.0})


def test_features_are_of_the_configs_kind() -> None:
    assert np.array_equal(mel_features(NOISE, CONFIG), log_mel(NOISE, CONFIG))
    assert np.array_equal(mel_features(NOISE, WHISPER), whisper_mel(NOISE, WHISPER))
