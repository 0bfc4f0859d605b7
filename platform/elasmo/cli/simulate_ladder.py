"""`elasmo simulate ladder MODEL --on 64xH100`: what each of eight interventions brings in MFU, money and energy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ladder(
    model: Annotated[
        str | None,
        typer.Argument(help="A published shape, a config.json, or a config; the page of all cases when left out."),
    ] = None,
    on: Annotated[
        list[str] | None, typer.Option("--on", help="Accelerators, such as 64xH100; again for another scale.")
    ] = None,
    seq: Annotated[int, typer.Option("--seq", min=1, help="Tokens of a sequence.")] = 4096,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences of a step.")] = 1024,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the products with mixed precision.")] = "bf16",
    start: Annotated[
        str | None, typer.Option("--from", help="Of the products without: tf32 where its peak is known, else fp32.")
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option("--samples", help="Lengths as they come: mean=900,spread=0.5,media=0.25; else one stream."),
    ] = None,
    decode: Annotated[float, typer.Option("--decode", min=1e-9, help="Media that a host decodes a second.")] = 1000.0,
    mtbf_h: Annotated[
        float,
        typer.Option("--mtbf", min=1e-3, help="Hours between failures of one accelerator with its share of host."),
    ] = 50_700.0,
    fix: Annotated[list[str] | None, typer.Option("--fix", help="A part of the layout to keep, such as tp=8.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Markdown file to write; printed when left out.")] = None,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
) -> None:
    """What each of eight interventions brings in MFU, money and energy: one by one, alone, and left out."""
    import json

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.goodput import Failures
    from elasmo.simulate.ladder import Case, climb, start_dtype
    from elasmo.simulate.ladder_page import ladder_json, ladder_lines, page, title
    from elasmo.simulate.named import named_model
    from elasmo.simulate.plan import PlanError
    from elasmo.simulate.samples import parse_samples
    from elasmo.simulate.search import fixed_fields

    if model is None:
        text = page()
    else:
        if not on:
            raise PlanError("simulate ladder MODEL needs --on, such as --on 64xH100.")
        own, _ = load_hardware(hardware) if hardware is not None else ([], None)
        described = named_model(model)
        drawn = parse_samples(samples) if samples is not None else None
        made = []
        for each in on:
            cluster = parse_cluster(each, own)
            made.append(
                climb(
                    Case(
                        described, cluster, seq, batch, dtype, start_dtype(cluster, start), drawn, decode,
                        Failures(mtbf_h=mtbf_h), fixed_fields(fix or []),
                    )
                )
            )  # fmt: skip
        if as_json:
            text = json.dumps([ladder_json(each) for each in made], indent=1)
        else:
            text = "\n".join(
                line for each in made for line in ("", f"## {title(each.case)}, simulated", *ladder_lines(each))
            )
    if out is None:
        typer.echo(text.strip())
    else:
        out.write_text(text)
