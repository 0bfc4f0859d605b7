from __future__ import annotations

from dataclasses import replace

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.power import power_w


def test_power_lies_between_idle_and_the_cap() -> None:
    chip = accelerator("H100")
    idle, busy = power_w(chip, 0, 0, 0), power_w(chip, 1, 1, 1)
    assert idle is not None and 60 < idle < 150
    assert busy == 700
    assert power_w(replace(chip, power_cap_w=500), 1, 1, 1) == 500


def test_an_unknown_design_power_gives_no_number() -> None:
    assert power_w(accelerator("TPU v5p"), 1, 1, 1) is None
