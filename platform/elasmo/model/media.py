"""Decodes images and sounds with Pillow and libsndfile, checking their cost in the header before decoding a pixel."""

from __future__ import annotations

import io
import warnings

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from elasmo.config import LimitsConfig

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Image formats that are read; Pillow knows more, and some of those run other programs."""
MAX_CHANNELS = 8
"""Channels of a sound; a compressed file could claim hundreds and cost their memory."""


class MediaError(ValueError):
    """A medium that is empty, damaged or over a limit, in one sentence."""


def decode_image(data: bytes, limits: LimitsConfig) -> NDArray[np.uint8]:
    """Pixels of an encoded image, uint8 [height, width, channels] with 1 channel for gray images and 3 for others.

    Raises:
        MediaError: empty, over `image_bytes` or `image_pixels`, or not an image.
    """
    if not data:
        raise MediaError("The image is empty (0 bytes); send an encoded file such as PNG or JPEG.")
    if len(data) > limits.image_bytes:
        raise MediaError(f"The image has {len(data)} bytes; at most {limits.image_bytes} are allowed (image_bytes).")
    try:
        with warnings.catch_warnings():
            # Our own limit is checked right below; Pillow's warning would say it twice.
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)
            with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > limits.image_pixels:
                    raise MediaError(
                        f"The image has {width}x{height} = {width * height} pixels; "
                        f"at most {limits.image_pixels} are allowed (image_pixels)."
                    )
                pixels = _pixels(image)
    except UnidentifiedImageError:
        raise MediaError(f"The image is in no format that is read here; send {', '.join(FORMATS)}.") from None
    except Pillow.DecompressionBombError:
        raise MediaError(
            f"The image's header claims far more than the {limits.image_pixels} pixels allowed (image_pixels)."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"The image is damaged: {error}.") from None
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def decode_audio(data: bytes, limits: LimitsConfig, sample_rate: int) -> NDArray[np.float32]:
    """Samples of an encoded sound, float32 [samples] clipped to -1..1; several channels are averaged.

    Raises:
        MediaError: empty, over `audio_bytes` or `audio_s`, another sample rate, too many channels, or not a sound.
    """
    if not data:
        raise MediaError("The audio is empty (0 bytes); send an encoded file such as WAV or FLAC.")
    if len(data) > limits.audio_bytes:
        raise MediaError(f"The audio has {len(data)} bytes; at most {limits.audio_bytes} are allowed (audio_bytes).")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            if sound.samplerate != sample_rate:
                raise MediaError(
                    f"The audio has a sample rate of {sound.samplerate} Hz; the model takes {sample_rate} Hz."
                )
            seconds = sound.frames / sound.samplerate
            if seconds > limits.audio_s:
                raise MediaError(
                    f"The audio lasts {seconds:.2f} s; at most {limits.audio_s:g} s are allowed (audio_s)."
                )
            if sound.channels > MAX_CHANNELS:
                raise MediaError(f"The audio has {sound.channels} channels; at most {MAX_CHANNELS} are allowed.")
            samples = sound.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise MediaError(f"The audio cannot be read: {error.error_string}") from None
    except (RuntimeError, OSError) as error:
        raise MediaError(f"The audio cannot be read: {error}") from None
    if len(samples) == 0:
        raise MediaError("The audio holds no samples; send a recording of some length.")
    if not np.isfinite(samples).all():
        raise MediaError("The audio holds samples that are not numbers (NaN or infinity); export it again.")
    mono: NDArray[np.float32] = np.clip(samples, -1.0, 1.0).mean(axis=1, dtype=np.float32)
    return mono


def _pixels(image: Pillow.Image) -> NDArray[np.uint8]:
    """The first frame, [height, width] if gray, else [height, width, 3]."""
    if image.mode.startswith("I;16"):
        # Pillow would clip 16-bit samples at 255 and turn nearly everything white.
        return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
    gray = image.mode in ("1", "L", "I", "F")
    return np.asarray(image.convert("L" if gray else "RGB"), dtype=np.uint8)
