"""`elasmo simulate train MODEL --on 64xH100 --layout tp=8,pp=4`: one layout's time, bytes, money, energy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    model: Annotated[str, typer.Argument(help="A published shape, a Hugging Face config.json, or a config of Elasmo.")],
    on: Annotated[str, typer.Option("--on", help="Accelerators: 64xH100, 32xH100+32xA100; @2.5 $/h each.")],
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", help="tp=8,pp=4,micro_batch=2,recompute=attention+pointwise; the fastest when left out."
        ),
    ] = None,
    seq: Annotated[int, typer.Option("--seq", min=1, help="Tokens of a sequence.")] = 4096,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences of a step.")] = 1024,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the matrix products: bf16, fp16, fp8, tf32.")] = "bf16",
    data_s: Annotated[
        float, typer.Option("--data-s", min=0, help="Seconds that a step's batch takes to load, beside compute.")
    ] = 0.0,
    mtbf_h: Annotated[
        float,
        typer.Option("--mtbf", min=1e-3, help="Hours between failures of one accelerator with its share of host."),
    ] = 50_700.0,
    elastic: Annotated[
        bool, typer.Option("--elastic/--static", help="Go on without a lost node, or wait for its replacement.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write the step as a Chrome trace.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the step as an HTML page.")] = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """Simulate one training layout: time and where it goes, memory, power, money, goodput."""
    import json
    import shlex
    import sys

    from rich.console import Console

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.explain import explain as explain_plan
    from elasmo.simulate.goodput import Failures
    from elasmo.simulate.layout import check_memory, read_layout
    from elasmo.simulate.named import named_model
    from elasmo.simulate.page import render
    from elasmo.simulate.search import Job, search
    from elasmo.simulate.trace import chrome_trace
    from elasmo.simulate.train_report import run, run_json, run_tables
    from elasmo.simulate.training import simulate_step

    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    cluster, described, job = parse_cluster(on, own), named_model(model), Job(seq, batch, dtype)
    if layout is None:
        plan = search(described, cluster, job, top=1).steps[0].plan
    else:
        plan = read_layout(layout, described, cluster, job)
        check_memory(plan, described, cluster, job)
    step = simulate_step(described, plan, cluster, events=True, data_s=data_s)
    made = run(described, cluster, step, Failures(mtbf_h=mtbf_h), elastic)
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace(step)))
    if html is not None:
        command = shlex.join(["elasmo", *sys.argv[1:]])
        html.write_text(
            render(
                made,
                explanation=explain_plan(described, simulate_step(described, plan, cluster), cluster),
                command=command,
            )
        )
    if as_json:
        typer.echo(json.dumps(run_json(made), indent=1))
    else:
        Console().print(run_tables(made))
