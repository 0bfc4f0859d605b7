"""`elasmo simulate serve MODEL --on 8xH100`: a fleet under a load, and prefill and decode pools against one pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elasmo.simulate.fleet import Fleet
    from elasmo.simulate.pool_planner import Replicas
    from elasmo.simulate.serving_report import Comparison, Objective, ServingReport


def serve(
    model: Annotated[str, typer.Argument(help="A published shape (Llama-3.1-8B), or a Hugging Face config.json.")],
    on: Annotated[str, typer.Option("--on", help="Accelerators, such as 8xH100.")],
    load: Annotated[
        str,
        typer.Option(
            "--load",
            help="poisson:rate=4,prompt=1000,output=200[,count=,prompt_cv=,output_cv=,media=], bursts:...,size=20, or "
            "a trace .csv (Azure) or .jsonl (Mooncake)[,rate=,length=,count=].",
        ),
    ] = "poisson:rate=4,prompt=1000,output=200",
    tp: Annotated[int, typer.Option(help="Accelerators of a replica that share each layer.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages of a replica.")] = 1,
    expert_parallel: Annotated[bool, typer.Option("--expert-parallel", help="Experts whole on ranks.")] = False,
    precision: Annotated[str, typer.Option(help="Of weights: bf16, fp8, mxfp4, int4.")] = "bf16",
    cache: Annotated[str, typer.Option(help="Of the KV cache: bf16 or fp8.")] = "bf16",
    engine: Annotated[str, typer.Option(help="graphed, runtime, compiled, native, eager, or a product.")] = "graphed",
    split: Annotated[str, typer.Option(help="Replicas as PREFILL+DECODE, such as 2+6; co-located when left out.")] = "",
    compare: Annotated[
        bool, typer.Option("--compare", help="Serve co-located and with the best split, and say what changes.")
    ] = False,
    find_goodput: Annotated[
        bool, typer.Option("--goodput", help="The fastest this load may come with 90 % within the objective.")
    ] = False,
    ttft: Annotated[float, typer.Option(help="Objective: seconds to the first token.")] = 2.0,
    tpot: Annotated[float, typer.Option(help="Objective: seconds a later token.")] = 0.1,
    routing: Annotated[str, typer.Option(help="prefix, least or round.")] = "prefix",
    max_sequences: Annotated[int, typer.Option(help="Requests that run at once in a replica.")] = 256,
    step_tokens: Annotated[int, typer.Option(help="Prompt tokens of a step (chunked prefill).")] = 8192,
    link_gbps: Annotated[
        float | None, typer.Option("--link-GBps", help="GB/s of a replica to the other pool; scale-out when left out.")
    ] = None,
    autoscale: Annotated[bool, typer.Option("--autoscale", help="Start with one each; grow and shrink.")] = False,
    seed: Annotated[int, typer.Option(help="Of a drawn load.")] = 0,
    hardware: Annotated[Path | None, typer.Option("--hardware", help="YAML with accelerators of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Numbers for machines.")] = False,
) -> None:
    """Serve a load on a simulated fleet: latency, goodput, throughput, power."""
    import json
    from dataclasses import asdict

    from elasmo.simulate.cluster import load_hardware, parse_cluster
    from elasmo.simulate.deployment import Deployment
    from elasmo.simulate.deployment import precision as formats
    from elasmo.simulate.engine_kind import engine_kind
    from elasmo.simulate.fleet import Fleet, FleetError
    from elasmo.simulate.fleet import serve as run
    from elasmo.simulate.load import parse_load, scaled
    from elasmo.simulate.pool_planner import Replicas, proportional
    from elasmo.simulate.served_model import model_named
    from elasmo.simulate.serving_report import Objective, goodput, summarise
    from elasmo.simulate.serving_report import compare as compare_pools

    own, _ = load_hardware(hardware) if hardware is not None else ([], None)
    cluster = parse_cluster(on, own)
    if len(cluster.groups) != 1:
        raise FleetError(f"on={on} mixes accelerators; a simulated serving fleet has one kind.")
    served = model_named(model)
    cut = Deployment(
        served.model, cluster.groups[0].chip, engine_kind(engine), tp, pp,
        expert_parallel=expert_parallel and served.model.has_experts, precision=formats(precision, cache),
        step_tokens=step_tokens,
    )  # fmt: skip
    if cluster.count % cut.accelerators:
        raise FleetError(f"on={on} does not divide into replicas of tp x pp = {cut.accelerators}.")
    if routing not in ("prefix", "least", "round"):
        raise FleetError(f"routing={routing} is not known; use prefix, least or round.")
    total = cluster.count // cut.accelerators
    pools = _pools(split, total) if split else Replicas(0, total)
    planner = None
    if autoscale:
        planner, pools = proportional(ttft, tpot), Replicas(min(pools.prefill, 1), 1)
    fleet = Fleet(
        cut, pools, routing=routing, max_sequences=max_sequences,  # type: ignore[arg-type]
        link_bandwidth=None if link_gbps is None else link_gbps * 1e9, planner=planner, budget=total,
    )  # fmt: skip
    requests, objective = parse_load(load, seed), Objective(ttft, tpot)
    if compare:
        found = compare_pools(fleet, requests, objective)
        if as_json:
            shown = {"together": asdict(found.together), "apart": asdict(found.apart), "changes": found.changes}
            split = f"{found.split.prefill}+{found.split.decode}"
            typer.echo(json.dumps({**shown, "split": split, "tried": found.tried}))
        else:
            typer.echo(_comparison(found, objective))
        return
    if find_goodput:
        factor = goodput(fleet, lambda speed: scaled(requests, speed), objective)
        rate = factor * len(requests) / max(requests[-1].arrival_s, 1e-9)
        if as_json:
            typer.echo(json.dumps({"speed": factor, "requests_s": rate}))
        else:
            typer.echo(_title(fleet, served.note))
            typer.echo(
                f"{rate:.4g} requests/s, {factor:.3g} times this load's arrivals, keep {objective.attainment:.0%} of "
                f"requests within TTFT {ttft:g} s and TPOT {tpot:g} s."
            )
        return
    report = summarise(run(fleet, requests), objective)
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    typer.echo(_title(fleet, served.note))
    typer.echo(_table([("", report)], objective.ttft_s, objective.tpot_s))
    if autoscale:
        typer.echo("replicas over time (seconds: prefill+decode): "
                   + ", ".join(f"{time:.0f}: {a}+{b}" for time, a, b in report.replicas))  # fmt: skip


def _pools(text: str, total: int) -> Replicas:
    import re

    from elasmo.simulate.fleet import FleetError
    from elasmo.simulate.pool_planner import Replicas

    match = re.fullmatch(r"(\d+)\+(\d+)", text)
    if match is None or int(match[1]) + int(match[2]) != total:
        raise FleetError(f"split={text} must be PREFILL+DECODE replicas that add up to {total}, such as 1+{total - 1}.")
    return Replicas(int(match[1]), int(match[2]))


def _title(fleet: Fleet, note: str) -> str:
    cut, pools = fleet.deployment, fleet.replicas
    shape = f"{pools.prefill} prefill + {pools.decode} decode" if fleet.disaggregated else f"{pools.decode} co-located"
    return (
        f"{cut.model.name or 'model'} ({cut.model.parameters / 1e9:.1f}B, {note}); {shape} replicas of "
        f"{cut.accelerators} {cut.chip.name}, engine {cut.engine}. Simulated."
    )


def _rows(report: ServingReport, ttft: float, tpot: float) -> list[tuple[str, str]]:
    def spread(each: object, scale: float, unit: str) -> str:
        return " / ".join(f"{getattr(each, name) * scale:.4g}" for name in ("p50", "p90", "p99")) + f" {unit}"

    power = "unknown" if report.power_w is None else f"{report.power_w:.0f} W"
    joules = "unknown" if report.joules_per_token is None else f"{report.joules_per_token:.4g} J"
    return [
        ("requests (rejected, preempted)", f"{report.requests} ({report.rejected}, {report.preemptions})"),
        ("TTFT p50 / p90 / p99", spread(report.ttft_s, 1, "s")),
        ("TPOT p50 / p90 / p99", spread(report.tpot_s, 1e3, "ms")),
        ("ITL p50 / p90 / p99", spread(report.itl_s, 1e3, "ms")),
        ("request p50 / p90 / p99", spread(report.e2e_s, 1, "s")),
        ("output", f"{report.output_tokens_s:.5g} tokens/s, {report.requests_s:.4g} requests/s"),
        (f"TTFT <= {ttft:g} s and TPOT <= {tpot:g} s", f"{report.attainment:.1%}, {report.goodput:.4g} requests/s"),
        ("prompt tokens from the prefix cache", f"{report.prefix_hits:.1%}"),
        ("KV moved between pools", f"{report.moved_gb:.4g} GB"),
        ("busy", ", ".join(f"{role} {share:.0%}" for role, share in report.busy.items())),
        ("power, energy an output token", f"{power}, {joules}"),
    ]


def _table(reports: list[tuple[str, ServingReport]], ttft: float, tpot: float) -> str:
    columns = [_rows(report, ttft, tpot) for _, report in reports]
    lines = [f"{'':38}" + "".join(f"{name:32}" for name, _ in reports)] if len(reports) > 1 else []
    for number, (label, _) in enumerate(columns[0]):
        lines.append(f"{label:38}" + "".join(f"{column[number][1]:32}" for column in columns))
    return "\n".join(line.rstrip() for line in lines)


def _comparison(found: Comparison, objective: Objective) -> str:
    name = f"{found.split.prefill} prefill + {found.split.decode} decode"
    table = _table([("co-located", found.together), (name, found.apart)], objective.ttft_s, objective.tpot_s)
    changes = ", ".join(f"{key} {value:+.0%}" for key, value in found.changes.items() if value == value)
    tried = ", ".join(f"{key}: {value:.0%}" for key, value in found.tried.items())
    return f"{table}\nApart against co-located: {changes}.\nRequests within the objective by split: {tried}. Simulated."
