"""Perceptual hashes: the same picture stays within a few bits, another one does not, and what says nothing has none."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dctn

from elasmo.content.picture_hash import picture_hash


def picture(seed: int, side: int = 96) -> NDArray[np.uint8]:
    """Smooth blobs of colour, as photographs have them: noise, enlarged."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC))


def distance(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> int:
    one, other = picture_hash(left), picture_hash(right)
    assert one is not None and other is not None
    return (one ^ other).bit_count()


def test_the_hash_is_the_signs_of_the_lowest_frequencies() -> None:
    pixels = picture(0, 32)
    gray = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)
    low = dctn(gray, type=2)[:8, :8].ravel()
    bits = "".join(str(int(value)) for value in low > np.median(low[1:]))
    assert picture_hash(pixels) == int("0" + bits[1:], 2)


def test_a_scaled_recompressed_or_brightened_picture_is_near_and_others_are_far() -> None:
    for seed in range(20):
        pixels = picture(seed)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=50)
        small = np.asarray(Image.fromarray(pixels).resize((50, 50)))
        assert distance(pixels, np.asarray(Image.open(file))) <= 4
        assert distance(pixels, small) <= 4
        assert distance(pixels, (pixels * 0.8 + 20).astype(np.uint8)) <= 4
        assert distance(pixels, picture(seed + 100)) > 12


def test_a_small_or_a_flat_picture_has_no_hash() -> None:
    assert picture_hash(picture(0, 31)) is None
    flat = np.full((64, 64, 1), 250, dtype=np.uint8)
    flat[::7] -= 3
    assert picture_hash(flat) is None


def test_gray_and_coloured_pixels_of_one_picture_have_one_hash() -> None:
    gray = picture(3).mean(axis=2, keepdims=True).astype(np.uint8)
    assert picture_hash(gray) == picture_hash(np.repeat(gray, 3, axis=2))
