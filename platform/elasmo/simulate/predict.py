"""Fills predictions into rows with the columns of the published training tables; an impossible row gets a reason."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from elasmo.simulate.accelerator import GIB, Accelerator
from elasmo.simulate.calibration import Calibration
from elasmo.simulate.predict_serving import is_serving, predict_serving
from elasmo.simulate.row import predict_row

COLUMNS = (
    "predicted_iter_time_s", "predicted_tokens_per_s", "predicted_tokens_per_s_gpu", "predicted_mem_gb",
    "predicted_power_w", "predicted_j_per_token", "predicted_mfu_pct", "predicted_plan", "reason",
)  # fmt: skip
"""What a prediction adds to a row. Memory is in GiB a rank, power in W an accelerator."""


class TableError(ValueError):
    """A table that cannot be read."""


def predict(
    row: Mapping[str, str], calibration: Calibration | None = None, own: Iterable[Accelerator] = ()
) -> dict[str, str]:  # fmt: skip
    """The columns that a prediction adds; all blank but `reason` where the row cannot be."""
    blank = dict.fromkeys(COLUMNS, "")
    try:
        step = predict_row(row, calibration, own)
    except ValueError as error:
        return {**blank, "reason": str(error)}
    return {
        "predicted_iter_time_s": f"{step.seconds:.6g}",
        "predicted_tokens_per_s": f"{step.tokens_per_s:.6g}",
        "predicted_tokens_per_s_gpu": f"{step.tokens_per_s_each:.6g}",
        "predicted_mem_gb": f"{step.memory.total / GIB:.4g}",
        "predicted_power_w": "" if step.power_w is None else f"{step.power_w:.4g}",
        "predicted_j_per_token": "" if step.joules_per_token is None else f"{step.joules_per_token:.4g}",
        "predicted_mfu_pct": f"{100 * step.mfu:.4g}",
        "predicted_plan": str(step.plan),
        "reason": "",
    }


def predict_table(source: Path, own: Iterable[Accelerator] = ()) -> list[dict[str, str]]:
    """Every row of a CSV with its prediction beside it, the row's own columns as they were.

    Raises:
        TableError: no CSV with columns.
    """
    try:
        with source.open(newline="") as file:
            rows = [{key: value or "" for key, value in row.items() if key} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{source} cannot be read as CSV: {error}.") from None
    if not rows:
        raise TableError(f"{source} has no rows; give a CSV with a header and the columns of the training tables.")
    return [{**row, **(predict_serving(row) if is_serving(row) else predict(row, own=own))} for row in rows]


def write_table(rows: list[dict[str, str]], out: Path) -> None:
    """Writes rows as CSV."""
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
