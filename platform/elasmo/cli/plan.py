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
    to: Annotated[int | None, typer.Option("--to", min=1, help="Scaling curve: double the cluster up to this.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="What binds the best plan, and the next-best change.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the best plan's step as a Chrome trace.")] = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Plan a training run without hardware: layouts under memory, with time, money, energy and the reason."""
    import json

    from rich.console import Console

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.named import named_model
    from elasmo.simulate.search import Job, fixed_fields, scaling, search
    from elasmo.simulate.show import explanation_lines, plans_json, plans_table, scaling_table, step_json
    from elasmo.simulate.trace import chrome_trace
    from elasmo.simulate.training import simulate_step

    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    cluster = parse_cluster(on, own)
    described = named_model(model)
    job = Job(seq, batch, dtype, fixed_fields(fix or []))
    console = Console(width=max(Console().width, 150))  # a narrower table breaks its layouts into letters
    if to is not None:
        curve = scaling(described, cluster, job, to, goal)
        if as_json:
            points = [{"accelerators": count, "step": step and step_json(step)} for count, step in curve]
            typer.echo(json.dumps({"model": described.name, "scaling": points}, indent=1))
        else:
            console.print(scaling_table(described, cluster, curve))
        return
    found = search(described, cluster, job, goal, top)
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace(simulate_step(described, found.steps[0].plan, cluster, events=True))))
    if as_json:
        typer.echo(json.dumps(plans_json(described, cluster, found, explain), indent=1))
        return
    console.print(plans_table(described, cluster, found))
    if explain:
        for line in explanation_lines(described, cluster, found.steps[0]):
            console.print(line)
