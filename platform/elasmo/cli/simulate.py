"""`elasmo simulate train|serve|ladder|predict|validate`: what training and serving take, and how far that is off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.simulate_ladder import ladder
from elasmo.cli.simulate_serve import serve
from elasmo.cli.simulate_train import train

simulate = typer.Typer(
    no_args_is_help=True, help="Predict training and serving without hardware, and score that against measurements."
)
simulate.command("train")(train)
simulate.command("serve")(serve)
simulate.command("ladder")(ladder)

Out = Annotated[Path | None, typer.Option("--out", help="File to write; printed when left out.")]


@simulate.command("validate")
def validate(
    source: Annotated[
        Path | None, typer.Argument(help="A folder of training tables; those that ship when left out.")
    ] = None,
    out: Out = None,
) -> None:
    """Score predictions against published measurements."""
    from elasmo.simulate.validate import page
    from elasmo.simulate.validate import validate as score_training
    from elasmo.simulate.validate_serving import serving_section, validate_serving

    text = f"{page(score_training(source))}\n{serving_section(validate_serving())}"
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text)


@simulate.command("predict")
def predict(
    source: Annotated[Path | None, typer.Argument(help="A CSV with the columns of the published tables.")] = None,
    out: Out = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Fill predictions into the rows of a CSV of training or serving."""
    from elasmo.simulate.cluster import load_hardware
    from elasmo.simulate.predict import TableError, predict_table, write_table

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
        rate = row.get("predicted_tokens_per_s_gpu") or ""
        first = row.get("predicted_ttft_ms") or ""
        typer.echo(
            f"{name}: {row['reason'] or (f'{rate} tokens/s each' if rate else f'{first} ms to the first token')}"
        )
