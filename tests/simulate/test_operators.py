from __future__ import annotations

import numpy as np
import pytest

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.calibration import default_calibration, from_json
from elasmo.simulate.fit_operators import errors, timed_products
from elasmo.simulate.operators import Operators, pairs


def operators(name: str = "H100") -> Operators:
    return Operators.of(accelerator(name))


@pytest.mark.parametrize("hw", ["A100-80GB", "H100-SXM", "A40"])
def test_products_take_the_time_that_was_measured(hw: str) -> None:
    rows = [row for row in timed_products() if row.hw == hw]
    off = np.abs(np.expm1(errors(default_calibration(), rows)))
    assert np.median(off) < 0.08


def test_a_product_never_beats_the_peak_or_the_memory() -> None:
    chip = accelerator("H100")
    for rows, columns, inner in ((1, 8192, 8192), (64, 128, 64), (4096, 4096, 4096), (100_000, 28672, 8192)):
        seconds = operators().gemm(rows, columns, inner, "bf16")
        assert seconds > 2 * rows * columns * inner / chip.peak("bf16")
        assert seconds > 2 * inner * columns / chip.bandwidth


def test_one_token_reads_the_weights_and_many_compute() -> None:
    one, many = operators().gemm(1, 8192, 8192, "bf16"), operators().gemm(8192, 8192, 8192, "bf16")
    assert one == pytest.approx(operators().gemm(8, 8192, 8192, "bf16"), rel=0.1)
    assert 2 * 8192**3 / many / 989e12 > 0.6


def test_a_head_count_that_does_not_fill_a_tile_costs_a_whole_one() -> None:
    full, ragged = operators().gemm(8192, 4096, 4096, "bf16"), operators().gemm(8192, 3904, 4096, "bf16")
    assert ragged / full > 3904 / 4096


def test_a_causal_mask_halves_the_work_and_a_window_bounds_it() -> None:
    assert pairs(1024, 1024, True) * 2 == pytest.approx(pairs(1024, 1024, False), rel=1e-3)
    assert pairs(4, 4, True) == 1 + 2 + 3 + 4
    assert pairs(1, 4096, True) == 4096  # the last token sees all
    assert pairs(4096, 4096, True, 128) == pytest.approx(4096 * 128, rel=0.05)
    assert pairs(256, 4096, True, 128) == 256 * 128


def test_a_power_cap_slows_products_and_not_memory() -> None:
    capped = Operators.of(accelerator("H100-SXM, 500W cap"))
    assert 0.7 < capped.sustained("bf16") / operators().sustained("bf16") < 0.95
    assert capped.streaming == operators().streaming


def test_hardware_that_was_not_measured_gets_its_best_published_shape_scaled() -> None:
    shares = [default_calibration().matmul_share(generation, "bf16") for generation in ("hopper", "blackwell", "cdna3")]
    assert 0.4 < shares[2] < shares[1] < 0.8


def test_the_calibration_survives_json() -> None:
    assert from_json(default_calibration().to_json()).to_json() == default_calibration().to_json()


def test_one_silicon_with_less_power_is_slower_under_lasting_load() -> None:
    """The PCIe A100 has the SXM's peak and three quarters of its power; its best measured product is slower too."""
    card, module = (Operators(accelerator(name), default_calibration(), True) for name in ("A100 PCIe", "A100"))
    assert 0.85 < card.sustained("bf16") / module.sustained("bf16") < 0.97
    ultra, plain = (Operators(accelerator(name), default_calibration(), True) for name in ("GB300", "GB200"))
    assert ultra.sustained("bf16") > plain.sustained("bf16")
