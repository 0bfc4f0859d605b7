"""Makes media fit the contract: pictures flattened on white and scaled down, recordings as mono FLAC at one rate."""

from __future__ import annotations

import io
import math

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

Pixels = Image.Image


def picture(content: bytes, suffix: str, most_pixels: int) -> bytes:
    """An RGB PNG of at most `most_pixels`, in the shape of the original; what cannot be read is returned as it is."""
    side = math.isqrt(most_pixels)
    try:
        if suffix == ".svg":
            content = _rendered(content, side)
        with Image.open(io.BytesIO(content)) as image:
            flat = _on_white(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        return content
    flat.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    flat.save(file, "PNG", optimize=False)
    return file.getvalue()


def recording(content: bytes, rate: int) -> tuple[bytes, int | None]:
    """16-bit mono FLAC at `rate` Hz and the rate before; what cannot be read is returned as it is, with None."""
    try:
        samples, source_rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, OSError):
        return content, None
    mono = sum(samples.T) / samples.shape[1]  # thirty times as fast as a mean over so short an axis
    file = io.BytesIO()
    soundfile.write(file, resampled(mono, source_rate, rate), rate, "PCM_16", format="FLAC")
    return file.getvalue(), int(source_rate)


def resampled(samples: NDArray[np.float32], source_rate: int, rate: int) -> NDArray[np.float32]:
    """float32 [samples] at another rate, band-limited (soxr, high quality), clipped to -1..1."""
    import soxr

    if source_rate != rate and len(samples):
        samples = soxr.resample(samples, source_rate, rate, quality="HQ")
    return np.clip(samples, -1.0, 1.0)


def versions() -> dict[str, str]:
    """The libraries whose version shows in the bytes that are landed."""
    from importlib.metadata import version

    import soxr

    return {
        "soxr": f"{soxr.__version__} with libsoxr {soxr.__libsoxr_version__}",
        "resvg-py": version("resvg-py"),
        "libsndfile": soundfile.__libsndfile_version__,
    }


def _rendered(content: bytes, side: int) -> bytes:
    """A drawing as PNG, its long side `side` pixels; without system fonts, so that it looks the same everywhere."""
    import resvg_py

    text = content.decode("utf-8", "replace")
    drawn = bytes(resvg_py.svg_to_bytes(svg_string=text, width=side, dpi=96.0, skip_system_fonts=True))
    return drawn


def _on_white(image: Pixels) -> Pixels:
    """RGB; what is transparent becomes white, not the colour that happens to lie under it."""
    rgba = image.convert("RGBA")
    flat = Image.new("RGB", rgba.size, "white")
    flat.paste(rgba, mask=rgba.getchannel("A"))
    return flat
