"""Headers of images and sounds, whole, cut short and damaged."""

from __future__ import annotations

import io
import random
import warnings

import pytest
from PIL import Image

from elasmo.content.media_header import AudioHeader, ImageHeader, read_header
from tests.pets import png, wav


def test_a_header_is_read_without_the_pixels_and_samples_behind_it() -> None:
    assert read_header(png(1, 9)[:60]) == ImageHeader(9, 9, "PNG")
    assert read_header(wav(1)) == AudioHeader(pytest.approx(0.2), 22_050, "WAV")  # type: ignore[arg-type]
    assert read_header(b"") is None and read_header(b"RIFF") is None


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_format_that_the_model_reads_is_measured(format: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (7, 5)).save(file, format)
    assert read_header(file.getvalue()) == ImageHeader(7, 5, format)


def test_damaged_headers_are_neither_errors_nor_warnings() -> None:
    chance = random.Random(0)
    files = [png(1), wav(1)[:200]]
    for format in ("WEBP", "TIFF"):
        file = io.BytesIO()
        Image.new("RGB", (7, 5)).save(file, format)
        files.append(file.getvalue())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(400):
            damaged = bytearray(chance.choice(files))
            for _ in range(4):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            read_header(bytes(damaged))
