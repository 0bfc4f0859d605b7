"""MFU, cost and energy of a run by hand, and what is said where they are not known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
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
    # 10 readings of 100 J after the first step, each of 2 s; the 4 s before at the same power.
    assert found.joules.value == pytest.approx(1200.0) and found.joules_per_token.value == pytest.approx(0.12)
    assert "measured over 83% of the time" in found.joules.source
    assert found.goodput == pytest.approx(20 / 24) and dict(found.lines())["goodput"] == "83.3 % of the wall clock"
    for figure, told in ((found.usd, "usd_by_kind"), (found.joules, "joules_by_kind")):
        assert sum(found.as_dict()[told].values()) == pytest.approx(figure.value)
    assert found.split(found.usd)["redone"] == pytest.approx(2 * 2 / 3600 * 3.0)


def test_a_reading_between_steps_is_not_counted_twice() -> None:
    """A rank at 50 W that computes a fifth of the time: each reading covers the 10 s since the one before."""
    events: list[dict[str, Any]] = [{"event": "attempt", "time": 90.0, "attempt": 1, "world": 1}]
    for step in range(1, 6):
        joules = 500.0 if step > 1 else 0.0
        events.append({"event": "step", "time": 90.0 + 10 * step, "step": step, "tokens": 1, "joules": joules})
        events[-1]["seconds"] = {"step": 2.0}
    assert meter(parse(map(json.dumps, events))).joules.value == pytest.approx(50 * 50)


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
    assert found.split(found.usd) == {} and found.as_dict()["joules_by_kind"] == {}


def test_watts_are_an_estimate_and_called_one() -> None:
    found = meter(run({"watts_per_device": 50.0}))
    assert found.joules.value == pytest.approx(50 * 2 * 24) and found.joules.source.startswith("estimated")


def write(folder: Path, label: str = "", **values: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if label:
        (folder / "name").write_text(f"{label}\n")
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def test_rapl_sums_packages_and_survives_their_wrap(tmp_path: Path) -> None:
    for package in (0, 1):
        folder = tmp_path / f"intel-rapl:{package}"
        write(folder, f"package-{package}", max_energy_range_uj=10_000_000, energy_uj=9_000_000)
    write(tmp_path / "intel-rapl:0:0", "core", max_energy_range_uj=10_000_000, energy_uj=5)  # a part of a package
    write(tmp_path / "intel-rapl:2", "psys", max_energy_range_uj=10_000_000, energy_uj=5)  # all that is above, again
    counter = energy.rapl(tmp_path)
    assert counter is not None and counter.since() == 0.0
    write(tmp_path / "intel-rapl:0", energy_uj=9_500_000)
    write(tmp_path / "intel-rapl:1", energy_uj=1_000_000)
    write(tmp_path / "intel-rapl:2", energy_uj=9_000_000)
    assert counter.since() == pytest.approx(0.5 + 2.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert counter.since() == 0.0


def test_a_machine_without_a_counter_has_none(tmp_path: Path) -> None:
    assert energy.rapl(tmp_path) is None
    write(tmp_path / "intel-rapl:0", "package-0", energy_uj=1)  # range missing
    assert energy.rapl(tmp_path) is None


def test_nvml_counts_the_gpu_that_the_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id: the rank's GPU 0 is another one's number in NVML when CUDA_VISIBLE_DEVICES hides some."""
    millijoules = {"GPU-a": 1000.0, "GPU-b": 5000.0}
    library: Any = ModuleType("pynvml")
    library.nvmlInit = lambda: None
    library.nvmlDeviceGetHandleByUUID = lambda uuid: uuid if uuid in millijoules else {}[uuid]
    library.nvmlDeviceGetTotalEnergyConsumption = lambda handle: millijoules[handle]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    counter = energy.nvml("GPU-b")
    assert counter is not None and counter.since() == 0.0
    millijoules |= {"GPU-a": 9000.0, "GPU-b": 7500.0}
    assert counter.since() == pytest.approx(2.5)
    assert energy.nvml("GPU-c") is None
