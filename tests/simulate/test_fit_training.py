from __future__ import annotations

import math

import numpy as np
import pytest

from elasmo.simulate.calibration import default_calibration
from elasmo.simulate.fit_training import (
    KNOBS,
    Slopes,
    leave_out,
    log_errors,
    measured_steps,
    prior,
    solve,
    turned,
    value,
    weights,
)
from elasmo.simulate.published import read_table

ROWS = measured_steps(read_table("T03_korthikanti2022_table5_a100") + read_table("T01_megatron2021_table1_a100"))


def test_turning_knobs_and_reading_them_back_agree() -> None:
    logs = np.log([value(prior(), knob) for knob in KNOBS]) + 0.01
    made = turned(prior(), KNOBS, logs)
    assert [value(made, knob) for knob in KNOBS] == pytest.approx(list(np.exp(logs)))


def test_a_linear_problem_is_solved_where_errors_vanish() -> None:
    random = np.random.default_rng(0)
    knobs = KNOBS[:3]
    at = np.log([value(prior(), knob) for knob in knobs])
    slope, truth = random.normal(size=(40, 3)), at + np.array([-0.2, 0.1, -0.1])
    found = solve(Slopes(at, slope @ (at - truth), slope), np.ones(40), at, knobs)
    assert found == pytest.approx(truth, abs=0.02)


def test_a_source_that_is_left_out_does_not_move_the_constants() -> None:
    chosen = [(row, 0) for row in ROWS]
    at = np.log([value(prior(), knob) for knob in KNOBS])
    slopes = Slopes(at, np.zeros(len(ROWS)), np.zeros((len(ROWS), len(KNOBS))))
    left = [True] * len(ROWS)
    left[0] = False
    made = leave_out(ROWS, left, slopes, chosen)
    assert [value(made, knob) for knob in KNOBS] == pytest.approx([value(prior(), knob) for knob in KNOBS])


def test_a_row_that_repeats_weighs_no_more_than_one() -> None:
    once, twice = weights(ROWS).sum(), weights([*ROWS, *ROWS]).sum()
    assert twice == pytest.approx(once)


def test_the_shipped_constants_predict_published_steps() -> None:
    rows = [(row, 0) for row in ROWS if len(row.reading.plans) == 1]
    assert np.median(np.abs(log_errors(default_calibration(), rows))) < math.log(1.12)


def test_unverified_rows_are_never_used() -> None:
    row = read_table("T03_korthikanti2022_table5_a100")[0]
    assert len(measured_steps([row])) == 1
    assert measured_steps([{**row, "verified": "unverified (from memory)"}]) == []
