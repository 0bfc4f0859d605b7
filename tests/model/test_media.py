"""Media are decoded exactly, and what is damaged or over a limit is refused in a sentence before it costs memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import soundfile
from PIL import Image as Pillow

from elasmo.config import LimitsConfig
from elasmo.model.media import MediaError, decode_audio, decode_image

LIMITS = LimitsConfig(image_bytes=100_000, image_pixels=10_000, audio_bytes=100_000, audio_s=2.0)
RATE = 16_000


def image_file(image: Pillow.Image, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


def sound_file(samples: np.ndarray, rate: int = RATE, format: str = "WAV", subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds a single byte of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


GRAY = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
COLOUR = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
SPEECH = np.random.default_rng(1).uniform(-0.9, 0.9, 4000).astype(np.float32)


def test_gray_and_colour_pixels_come_back_exactly() -> None:
    assert np.array_equal(decode_image(image_file(Pillow.fromarray(GRAY)), LIMITS), GRAY[:, :, None])
    assert np.array_equal(decode_image(image_file(Pillow.fromarray(COLOUR)), LIMITS), COLOUR)


def test_sixteen_bit_gray_keeps_its_shades() -> None:
    wide = GRAY.astype(np.uint16) * 256 + 77
    assert np.array_equal(decode_image(image_file(Pillow.fromarray(wide)), LIMITS), GRAY[:, :, None])


def test_a_palette_image_comes_back_in_its_colours() -> None:
    image = Pillow.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert decode_image(image_file(image), LIMITS).tolist() == [[[10, 20, 30], [200, 100, 50]]]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"not an image at all", "no format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n", "no format"),
        (image_file(Pillow.fromarray(COLOUR))[:-40], "damaged"),
        (image_file(Pillow.fromarray(GRAY)) + bytes(LIMITS.image_bytes), "image_bytes"),
        (image_file(Pillow.new("L", (200, 51))), "200x51 = 10200 pixels"),
        (png_header(20_000, 5_000), "image_pixels"),
        (png_header(60_000, 60_000), "image_pixels"),
    ],
    ids=["empty", "text", "eps", "truncated", "bytes", "pixels", "bomb header", "huge bomb header"],
)
def test_a_bad_image_is_refused_in_a_sentence(data: bytes, says: str) -> None:
    with pytest.raises(MediaError) as refused:
        decode_image(data, LIMITS)
    assert says in str(refused.value)
    assert " at 0x" not in str(refused.value) and "\n" not in str(refused.value)


def test_flipped_bytes_in_a_png_are_noticed() -> None:
    data = bytearray(image_file(Pillow.fromarray(COLOUR)))
    place = data.index(b"IDAT") + 8
    data[place : place + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(MediaError):
        decode_image(bytes(data), LIMITS)


@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_samples_come_back_within_a_quantisation_step(format: str) -> None:
    decoded = decode_audio(sound_file(SPEECH, format=format), LIMITS, RATE)
    assert decoded.dtype == np.float32 and decoded.shape == SPEECH.shape
    assert np.abs(decoded - SPEECH).max() <= 2**-15


def test_channels_are_averaged() -> None:
    stereo = np.stack([SPEECH, -SPEECH / 2], axis=1)
    decoded = decode_audio(sound_file(stereo, subtype="FLOAT"), LIMITS, RATE)
    assert np.allclose(decoded, SPEECH / 4, atol=1e-7)


def test_samples_beyond_full_scale_are_clipped() -> None:
    loud = np.array([1e30, -3.0, 0.5], np.float32)
    assert decode_audio(sound_file(loud, subtype="FLOAT"), LIMITS, RATE).tolist() == [1.0, -1.0, 0.5]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"RIFF but nothing more of it", "cannot be read"),
        (sound_file(SPEECH)[:20], "cannot be read"),
        (sound_file(SPEECH[:0]), "no samples"),
        (sound_file(SPEECH, rate=8_000), "8000 Hz; the model takes 16000 Hz"),
        (sound_file(np.zeros(60_000)), "audio_bytes"),
        (sound_file(np.zeros(RATE * 3), format="FLAC"), "3.00 s; at most 2 s"),
        (sound_file(np.zeros((10, 9))), "9 channels"),
        (sound_file(np.array([0.1, np.nan]), subtype="FLOAT"), "not numbers"),
        (sound_file(np.array([0.1, np.inf]), subtype="FLOAT"), "not numbers"),
    ],
    ids=["empty", "text", "truncated", "no samples", "rate", "bytes", "seconds", "channels", "nan", "infinity"],
)
def test_a_bad_sound_is_refused_in_a_sentence(data: bytes, says: str) -> None:
    with pytest.raises(MediaError) as refused:
        decode_audio(data, LIMITS, RATE)
    assert says in str(refused.value)
    assert " at 0x" not in str(refused.value) and "\n" not in str(refused.value)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that claims, and holds, that many black pixels."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = zlib.compress(bytes(min(width * height + height, 40_000_000)), 9)
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(6_000, 6_000), (40_000_000, 1), (1, 40_000_000), (60_000, 60_000)])
def test_a_decompression_bomb_is_refused_before_it_is_unpacked(width: int, height: int) -> None:
    """vllm-project/vllm#47010: a small file that unpacks to gigabytes must cost neither memory nor time."""
    data = bomb(width, height)
    assert len(data) < 100_000
    tracemalloc.start()
    with pytest.raises(MediaError, match="pixels"):
        decode_image(data, LimitsConfig())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "I", "F", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (1, 37), (37, 1), (2, 3)])
def test_images_of_every_mode_and_odd_shape_come_out_as_gray_or_colour(mode: str, size: tuple[int, int]) -> None:
    """vllm-project/vllm#9141: odd images (one pixel, one row, palette, alpha, CMYK) must not bring a server down."""
    image = Pillow.new(mode, size)
    file = io.BytesIO()
    for format in ("PNG", "TIFF", "JPEG", "GIF"):
        try:
            image.save(file, format)
            break
        except OSError:
            file = io.BytesIO()
    if not file.getvalue():
        pytest.skip(f"no format here holds {mode}")
    pixels = decode_image(file.getvalue(), LimitsConfig())
    assert pixels.shape[:2] == (size[1], size[0]) and pixels.shape[2] in (1, 3) and pixels.dtype == np.uint8


def test_an_animation_costs_its_first_frame() -> None:
    frames = [Pillow.new("L", (8, 8), shade) for shade in range(0, 250, 5)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert (decode_image(file.getvalue(), LimitsConfig()) == 0).all()
