"""What the header of a picture or a recording says against a contract's limits; no pixel is decoded."""

from __future__ import annotations

import io
from pathlib import Path

import soundfile
from PIL import Image

from elasmo.config import LimitsConfig
from elasmo.model.media import FORMATS, MAX_CHANNELS

Medium = Path | io.BytesIO


def media_problem(kind: str, medium: Medium, size: int, limits: LimitsConfig, rate: int | None) -> str:
    """A sentence without its subject on what ingestion would refuse, or nothing.

    Args:
        kind: image or audio.
        size: bytes of the medium.
        rate: the contract's sample rate.
    """
    return _image(medium, size, limits) if kind == "image" else _audio(medium, size, limits, rate)


def _image(medium: Medium, size: int, limits: LimitsConfig) -> str:
    if size > limits.image_bytes:
        return f"has {size} bytes; at most {limits.image_bytes} are allowed (media.image_bytes)."
    try:
        with Image.open(medium, formats=FORMATS) as image:
            width, height = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return f"is no image that is read here; give {', '.join(FORMATS)}."
    if width * height > limits.image_pixels:
        return f"has {width}x{height} pixels; at most {limits.image_pixels} are allowed (media.image_pixels)."
    return ""


def _audio(medium: Medium, size: int, limits: LimitsConfig, rate: int | None) -> str:
    if rate is None:
        return "is a sound, but the contract names no media.sample_rate; add it."
    if size > limits.audio_bytes:
        return f"has {size} bytes; at most {limits.audio_bytes} are allowed (media.audio_bytes)."
    try:
        sound = soundfile.info(str(medium) if isinstance(medium, Path) else medium)
    except (soundfile.LibsndfileError, RuntimeError, OSError):
        return "is no sound that is read here; give WAV, FLAC, OGG or MP3."
    if sound.samplerate != rate:
        return f"has a sample rate of {sound.samplerate} Hz; media.sample_rate is {rate}, convert one of them."
    if sound.duration > limits.audio_s:
        return f"lasts {sound.duration:.2f} s; at most {limits.audio_s:g} s are allowed (media.audio_s)."
    if sound.channels > MAX_CHANNELS:
        return f"has {sound.channels} channels; at most {MAX_CHANNELS} are allowed."
    return "holds no samples." if sound.frames == 0 else ""
