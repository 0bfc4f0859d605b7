"""`elasmo plan MODEL --on 64xH100`: the best training layouts, why, and what the next change would buy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def plan(
    model: Annotated[str, typer.Argument(help="A published shape, a Hugging Face config.json, or a config of Elasmo.")],
    on: Annotated[
        str, typer.Option("--on", help="Accelerators: 64xH100, 32xH100+32xA100, 512xTPU v5p; @2.5 $/h each.")
    ],
    seq: Annotated[int, typer.Option("--seq", min=1, help="Tokens of a sequence.")] = 4096,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences of a step.")] = 1024,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the matrix products: bf16, fp16, fp8, fp4.")] = "bf16",
    goal: Annotated[Literal["time", "price", "energy"], typer.Option("--goal", help="What ranks the plans.")] = "time",
    fix: Annotated[list[str] | None, typer.Option("--fix", help="A part of the layout to keep, such as tp=8.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Plans to show.")] = 5,
    explain: Annotated[
        bool, typer.Option("--explain", help="What binds the best plan, and the next-best change.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Plan a training run without hardware: layouts under memory, with time, money, energy and the reason."""
    import json

    from rich.console import Console

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.named import named_model
    from elasmo.simulate.search import Job, fixed_fields, search
    from elasmo.simulate.show import explanation_lines, plans_json, plans_table

    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    cluster = parse_cluster(on, own)
    described = named_model(model)
    found = search(described, cluster, Job(seq, batch, dtype, fixed_fields(fix or [])), goal, top)
    if as_json:
        typer.echo(json.dumps(plans_json(described, cluster, found, explain), indent=1))
        return
    console = Console(width=max(Console().width, 150))  # a narrower table breaks its layouts into letters
    console.print(plans_table(described, cluster, found))
    if explain:
        for line in explanation_lines(described, cluster, found.steps[0]):
            console.print(line)
