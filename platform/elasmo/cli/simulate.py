"""`elasmo simulate predict|validate`: what a training step takes, for a table's rows, and how far that is off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def simulate(
    what: Annotated[Literal["predict", "validate"], typer.Argument(help="predict a CSV, or validate the model.")],
    source: Annotated[
        Path | None, typer.Argument(help="predict: a CSV; validate: a folder of tables, else those that ship.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; printed when left out.")] = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Predict training steps without hardware, or score such predictions against published measurements."""
    from elasmo.simulate.cluster import load_hardware
    from elasmo.simulate.predict import TableError, predict_table, write_table
    from elasmo.simulate.validate import page, validate

    if what == "validate":
        text = page(validate(source))
        if out is None:
            typer.echo(text)
        else:
            out.write_text(text)
        return
    if source is None:
        raise TableError("simulate predict needs a CSV; give its path.")
    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    rows = predict_table(source, own)
    if out is not None:
        write_table(rows, out)
    refused = [row for row in rows if row["reason"]]
    typer.echo(f"{source}: {len(rows) - len(refused)} of {len(rows)} rows predicted" + (f", in {out}" if out else ""))
    for row in rows if out is None else refused:
        name = row.get("row_id") or row.get("model") or "row"
        typer.echo(f"{name}: {row['reason'] or row['predicted_tokens_per_s_gpu'] + ' tokens/s each'}")
