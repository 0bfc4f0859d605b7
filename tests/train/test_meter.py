"""What a rank knows of its device: a published peak by its name, a measured one else, and never another chip's."""

from __future__ import annotations

import pytest
import torch

from elasmo.config import load
from elasmo.train.meter import device_facts, measured_peak, published_peak


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5e12),
        ("NVIDIA B200", "bfloat16", 2250e12),
        ("NVIDIA H100 NVL", "bfloat16", None),  # not in the table: fewer units and less power than an SXM
        ("NVIDIA H800", "bfloat16", None),
        ("NVIDIA B200", "float32", None),
        ("NVIDIA GeForce RTX 4090", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),  # a seventh of a GPU
    ],
)
def test_a_chip_has_its_own_peak_or_none(name: str, dtype: str, peak: float | None) -> None:
    found = published_peak(name, dtype)
    assert (found[0] if found is not None else None) == peak
    assert found is None or dtype in found[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_a_cpu_is_measured_and_said_to_be() -> None:
    facts = device_facts(load(None, [], {}))
    assert facts["name"] == "CPU" and facts["peak_source"].startswith("measured")
    assert 1e9 < facts["peak_flops"] < 1e14
    assert "usd_per_device_hour" not in facts and "watts_per_device" not in facts


def test_a_configured_peak_counts_before_all_others() -> None:
    facts = device_facts(load(None, ["train.meter.peak_tflops=2"], {}))
    assert facts["peak_flops"] == 2e12 and facts["peak_source"].startswith("configured")


def test_a_measured_peak_is_no_less_than_one_product_reaches() -> None:
    import time

    side = 512
    left, right = (torch.randn(side, side) for _ in range(2))
    torch.mm(left, right)
    began = time.perf_counter()
    torch.mm(left, right)
    once = 2 * side**3 / (time.perf_counter() - began)
    assert measured_peak("float32") > 0.3 * once
