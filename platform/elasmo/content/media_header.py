"""What an image's or a sound's header says of it: size, duration and rate, without decoding a pixel or a sample."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import soundfile
from PIL import Image as Pillow

from elasmo.model.media import FORMATS

_SOUNDS = (b"RIFF", b"fLaC", b"OggS")
"""Beginnings of sounds; only the order of trying rests on them, and trying an image's formats first takes longer."""


@dataclass(frozen=True)
class ImageHeader:
    """Pixels across and down, and Pillow's name of the format."""

    width: int
    height: int
    format: str


@dataclass(frozen=True)
class AudioHeader:
    """Length, sample rate, and libsndfile's name of the format."""

    seconds: float
    rate_hz: int
    format: str


def read_header(data: bytes) -> ImageHeader | AudioHeader | None:
    """The header of an encoded file; None where it is neither an image nor a sound that the model's reader knows."""
    sounds_first = data[:4] in _SOUNDS and data[8:12] != b"WEBP"
    return _audio(data) or _image(data) if sounds_first else _image(data) or _audio(data)


def _image(data: bytes) -> ImageHeader | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong with a file behind its size is not for here
            with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                return ImageHeader(*image.size, image.format or "unknown")
    except (OSError, SyntaxError, ValueError, EOFError, Pillow.DecompressionBombError):
        return None


def _audio(data: bytes) -> AudioHeader | None:
    try:
        found = soundfile.info(io.BytesIO(data))
    except (RuntimeError, OSError):  # LibsndfileError is a RuntimeError
        return None
    return AudioHeader(found.frames / found.samplerate, found.samplerate, found.format)
