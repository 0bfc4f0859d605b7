"""MFU, cost and energy of a run by hand, and what is said where they are not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasmo.measure import energy
from elasmo.measure.meter import NO_FLOPS, NO_JOULES, NO_PEAK, NO_PRICE, meter
from elasmo.measure.run_log import RunLog, parse


def run(device: dict[str, Any], **of_each_step: Any) -> RunLog:
    """Ten steps of two ranks and two seconds each, one of them done twice, in 24 s."""
    events: list[dict[str, Any]] = [{"event": "device", **device}]
    events.append({"event": "attempt", "time": 100.0, "attempt": 1, "world": 2})
    for number, step in enumerate([1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10]):
        events.append(
            {
                "event": "step",
                "time": 104.0 + 2 * number,
                "step": step,
                "world": 2,
                "tokens": 1000,
                "seconds": {"step": 2.0},
                **of_each_step,
            }
        )
    return parse(map(json.dumps, events))


def test_figures_by_hand() -> None:
    device = {"peak_flops": 1e12, "peak_source": "published", "usd_per_device_hour": 3.0}
    found = meter(run(device, flops=1.2e12, hardware_flops=1.6e12, joules=100.0))
    assert found.tokens == 10_000 and found.tokens_per_s == pytest.approx(10_000 / 24)
    assert found.mfu.value == pytest.approx(1.2 / (2 * 2)) and found.hfu.value == pytest.approx(0.4)
    assert found.usd.value == pytest.approx(2 * 24 / 3600 * 3.0)
    assert found.usd_per_mtoken.value == pytest.approx(100 * 2 * 24 / 3600 * 3.0)
    # 11 steps of 100 J in 22 s; the 2 s without a step at the same power.
    assert found.joules.value == pytest.approx(1200.0) and found.joules_per_token.value == pytest.approx(0.12)
    assert "measured" in found.joules.source


def test_unknown_stays_unknown_and_says_why() -> None:
    found = meter(run({}, flops=1e12, hardware_flops=1e12))
    assert [(figure.value, figure.source) for figure in (found.mfu, found.usd, found.joules)] == [
        (None, NO_PEAK),
        (None, NO_PRICE),
        (None, NO_JOULES),
    ]
    assert dict(found.lines())["MFU"] == f"unknown: {NO_PEAK}"
    assert meter(run({"peak_flops": 1e12, "peak_source": "x"})).mfu.source == NO_FLOPS
    assert meter(parse([])).tokens == 0
    assert json.dumps(found.as_dict())


def test_watts_are_an_estimate_and_called_one() -> None:
    found = meter(run({"watts_per_device": 50.0}))
    assert found.joules.value == pytest.approx(50 * 2 * 24) and found.joules.source.startswith("estimated")


def write(folder: Path, **values: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_rapl_sums_packages_and_survives_their_wrap(tmp_path: Path) -> None:
    for package in (0, 1):
        write(tmp_path / f"intel-rapl:{package}", max_energy_range_uj=10_000_000, energy_uj=9_000_000)
    write(tmp_path / "intel-rapl:0:0", max_energy_range_uj=10_000_000, energy_uj=5)  # cores, a part of a package
    counter = energy.rapl(tmp_path)
    assert counter is not None and counter.since() == 0.0
    write(tmp_path / "intel-rapl:0", energy_uj=9_500_000)
    write(tmp_path / "intel-rapl:1", energy_uj=1_000_000)
    assert counter.since() == pytest.approx(0.5 + 2.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert counter.since() == 0.0


def test_a_machine_without_a_counter_has_none(tmp_path: Path) -> None:
    assert energy.rapl(tmp_path) is None
    write(tmp_path / "intel-rapl:0", energy_uj=1)  # range missing
    assert energy.rapl(tmp_path) is None
