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
    pareto: Annotated[
        bool,
        typer.Option("--pareto", help="The plans that none beats in time, price and energy; with --to, of all sizes."),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="What binds the best plan, and the next-best change.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the best plan's step as a Chrome trace.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page of the best plan and the rest.")
    ] = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Plan a training run without hardware: layouts under memory, with time, money, energy and the reason."""
    import json
    import shlex
    import sys

    from rich.console import Console

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.explain import explain as explain_plan
    from elasmo.simulate.goodput import Failures
    from elasmo.simulate.named import named_model
    from elasmo.simulate.page import render
    from elasmo.simulate.search import Job, UnfitError, curve_of, fixed_fields, front_of, search, searches
    from elasmo.simulate.show import (
        explanation_lines,
        front_table,
        plans_json,
        plans_table,
        scaling_json,
        scaling_table,
    )
    from elasmo.simulate.trace import chrome_trace
    from elasmo.simulate.train_report import run
    from elasmo.simulate.training import simulate_step

    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    cluster = parse_cluster(on, own)
    described = named_model(model)
    job = Job(seq, batch, dtype, fixed_fields(fix or []))
    console = Console(width=max(Console().width, 150))  # a narrower table breaks its layouts into letters
    sized = searches(described, cluster, job, to, goal, top) if to is not None else []
    curve, front = curve_of(sized), front_of(sized)
    if to is not None and not front:
        raise UnfitError(f"{described.name or 'The model'} fits on no {cluster} to {to}; raise --to.")
    # A page is of the first size that fits; without a curve, of the cluster.
    found = next((each for _, each in sized if each is not None), None)
    if found is None:
        found = search(described, cluster, job, goal, top)
    best, cluster = found.steps[0], cluster.resized(found.steps[0].plan.world) if to is not None else cluster
    if trace is not None or html is not None:
        played = simulate_step(described, best.plan, cluster, events=True)
        if trace is not None:
            trace.write_text(json.dumps(chrome_trace(played)))
        if html is not None:
            html.write_text(
                render(
                    run(described, cluster, played, Failures(), elastic=True), found.steps,
                    explain_plan(described, best, cluster), curve, [step for _, each in sized or [(0, found)] if each
                    for step in each.fitting], front or found.front, shlex.join(["elasmo", *sys.argv[1:]]),
                )
            )  # fmt: skip
    if as_json:
        made = (
            scaling_json(described, curve, front) if to is not None else plans_json(described, cluster, found, explain)
        )
        typer.echo(json.dumps(made, indent=1))
        return
    if to is not None:
        console.print(scaling_table(described, cluster, curve))
    if pareto:
        console.print(front_table(described, cluster, front or found.front))
    elif to is None:
        console.print(plans_table(described, cluster, found))
    if explain:
        for line in explanation_lines(described, cluster, best):
            console.print(line)
