from __future__ import annotations

from pathlib import Path

import pytest

from elasmo.simulate.calibration import default_calibration
from elasmo.simulate.fit_training import measured_steps
from elasmo.simulate.predict import write_table
from elasmo.simulate.published import read_table
from elasmo.simulate.score import Point
from elasmo.simulate.validate import TIME, page, report, state_points, step_points, tables_in, validate


def test_a_report_has_a_line_a_source_and_ranks_within_sweeps() -> None:
    points = [Point(TIME, "A", "A", 1.0 + 0.1 * i, 1.0 + 0.1 * i, "sweep", str(i)) for i in range(4)]
    points += [Point(TIME, "B", "B", 1.2, 1.0)]
    text = report(points)
    assert "| step time, dense | A | this source | 4 | 0.0% |" in text
    assert "| step time, dense | B | this source | 1 | 20.0% |" in text
    assert "| sweep | 4 | 1.00 |" in text
    assert "numpy" in page(points)


def test_tables_of_a_folder_are_read_whatever_their_names(tmp_path: Path) -> None:
    rows = read_table("T03_korthikanti2022_table5_a100")
    write_table([{**row, "source_id": "T99"} for row in rows], tmp_path / "T99_new.csv")
    write_table([{"other": "1"}], tmp_path / "T98_other.csv")
    assert {row["source_id"] for row in tables_in(tmp_path)} == {"T99"}
    assert len(tables_in(tmp_path)) == len(rows)


def test_predictions_stand_beside_what_was_measured() -> None:
    rows = measured_steps(read_table("T03_korthikanti2022_table5_a100"))
    points = step_points(rows, default_calibration(), TIME, "nothing")
    assert len(points) == 8 and all(point.measured > 0 and point.error < 0.2 for point in points)


def test_model_states_need_no_fit() -> None:
    assert max(point.error for point in state_points()) < 0.01


@pytest.mark.full
def test_sources_that_are_left_out_are_predicted_within_the_goals() -> None:
    points = [point for point in validate() if point.quantity == TIME]
    errors = sorted(point.error for point in points)
    assert errors[len(errors) // 2] < 0.07
