"""`elasmo trace RUN --step S`: the source rows behind a step of a run, or behind an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasmo.cli.options import ConfigFile

if TYPE_CHECKING:
    from elasmo.train.trace import Trace


def trace(
    run: Annotated[str, typer.Argument(help="The run's folder, or its id below train.storage.")],
    step: Annotated[int, typer.Option("--step", "-s", min=1, help="Committed step, counted from 1 as in the log.")],
    evaluation: Annotated[
        bool, typer.Option("--eval", help="Trace the evaluation after that step instead: its held-out rows.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
    config_file: ConfigFile = None,
) -> None:
    """List the source rows behind a step of a run, with their files and the snapshots between."""
    import json
    from dataclasses import asdict

    from elasmo.config import load
    from elasmo.measure.run_folder import find
    from elasmo.train.trace import trace_evaluation, trace_step

    folder = find(run, Path(load(config_file).train.storage))
    found = trace_evaluation(folder, step) if evaluation else trace_step(folder, step)
    if as_json:
        print(json.dumps({**asdict(found), "proven": found.proven}, indent=1))
    else:
        _show(found, step)


def _show(found: Trace, step: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    event = found.event
    loss = f", loss {event['loss']:.4f}" if "loss" in event else ""
    if found.receipt is None:
        console.print(f"evaluation after step {step}: {len(found.rows)} held-out rows{loss}", markup=False)
    else:
        proof = "equals the plan's" if found.proven else f"DIFFERS from the plan's, {found.receipt}"
        where = f"attempt {event['attempt']}, {event['world']} ranks"
        console.print(f"step {step}: {len(found.rows)} rows on {where}{loss}", markup=False)
        console.print(f"receipt {event['receipt']} {proof}", markup=False)
    table = Table("slot", "row", "modality", "key", "source rows", "file")
    for row in found.rows:
        files = [f"{s.origin} ({(s.sha256 or '')[:12]})" if s.origin else f"{s.file}:{s.row}" for s in row.sources]
        slot = "" if row.slot is None else str(row.slot)
        names = "\n".join(source.name for source in row.sources)
        table.add_row(slot, str(row.gold.row_id), row.gold.modality, row.gold.key, names, "\n".join(files))
    console.print(table, markup=False)
    for chain in found.lineage:
        steps = " <- ".join(f"{node.layer} {node.snapshot}" for node in chain.nodes)
        console.print(f"{chain.dataset}: {steps} <- {len(chain.files) + len(chain.inputs)} files", markup=False)
