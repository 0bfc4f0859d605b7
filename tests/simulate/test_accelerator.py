from __future__ import annotations

import pytest

from elasmo.simulate.accelerator import GIB, HardwareError, accelerator, catalogue, dtype_name
from elasmo.simulate.published import read_table


def test_the_catalogue_has_every_published_accelerator_with_its_source() -> None:
    assert set(catalogue()) == {row["name"] for row in read_table("H01_accelerators")}
    assert all(chip.source for chip in catalogue().values())


def test_peaks_memory_and_bandwidth_are_the_published_ones() -> None:
    chip = accelerator("H100")
    assert (chip.peak("bf16"), chip.peak("fp8")) == (989e12, 1979e12)
    assert (chip.memory, chip.bandwidth, chip.price_usd_h) == (80 * GIB, 3350e9, 4.25)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100_80gb", "H100-SXM-80GB"),
        ("a100_40gb", "A100-SXM-40GB"),
        ("A100-SXM-80GB (Selene, 8/node)", "A100-SXM-80GB"),
        ("TPU v5p", "TPU v5p"),
        ("GB300", "GB300 (NVL72)"),
        ("H200-SXM (400Gb/s/GPU)", "H200-SXM"),
    ],
)
def test_names_that_published_tables_use_are_understood(written: str, name: str) -> None:
    assert accelerator(written).name == name


def test_what_a_table_says_of_a_variant_replaces_the_catalogue() -> None:
    chip = accelerator("H100-SXM 96GB HBM2e 2.4TB/s, 500W cap (Grand Teton, 400Gb/s/GPU)")
    assert (chip.memory, chip.bandwidth, chip.power_cap_w) == (96 * GIB, 2.4e12, 500)


@pytest.mark.parametrize("name", ["H900", "A1000", "H100X", "TPU v9", "", "Hopper"])
def test_an_unknown_accelerator_is_refused_and_the_known_are_named(name: str) -> None:
    with pytest.raises(HardwareError, match=r"H100-SXM-80GB.*hardware YAML"):
        accelerator(name)


def test_an_unknown_peak_is_never_another_ones() -> None:
    with pytest.raises(
        HardwareError, match="dtype=fp8 has no known peak on A100-SXM-80GB; use one of bf16, fp16, fp32, int8, tf32"
    ):
        accelerator("A100").peak("fp8")
    with pytest.raises(HardwareError, match="memory_gb of TPU v7x"):
        _ = accelerator("ironwood").memory


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("amp_bf16", "bf16"),
        ("fp8+bf16attn", "fp8"),
        ("FP8-CS (FP8-MX)", "fp8"),
        ("MXFP8", "fp8"),
        ("fp8 rowwise", "fp8"),
    ],
)
def test_dtypes_are_read_as_tables_write_them(written: str, kind: str) -> None:
    assert dtype_name(written) == kind


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(HardwareError, match="dtype=fp6 is not known; use one of bf16"):
        dtype_name("fp6")
