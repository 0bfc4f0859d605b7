"""`elasmo demo`: the whole loop on this machine, from raw files to a served model, with a node lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasmo.cli.options import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from elasmo.cli.demo_train import Trained
    from elasmo.config import Config

CONFIG = Path("pipelines/digits.yaml")
WANTED = {"image": 0.95, "audio": 0.90, "table": 0.95}
"""Held-out accuracy below which the demo says that it failed."""
LOSS_TOLERANCE = 1e-5


def demo(
    overrides: Overrides = None,
    config_file: Annotated[Path, typer.Option("--config", "-c", help="Config of the run.")] = CONFIG,
) -> None:
    """Run it all: ingest, train, lose a node, serve, ask."""
    import json
    import os

    # Read when Ray is imported: the death of a raylet is the point of the demo, its last words are not.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "Raylet is terminated|The node with node id")

    from rich.console import Console

    from elasmo.config import dump, load
    from elasmo.data.stream import open_gold
    from elasmo.serve.http_port import check_port
    from elasmo.train.local_cluster import LocalCluster
    from elasmo.train.preflight import preflight

    config = load(config_file, ["ray.address=local", *(overrides or ())])
    check_port(config.serve.host, config.serve.port)  # now, not after the training
    console = Console(soft_wrap=True)  # paths and commands stay whole, to be copied
    clock = _Clock()
    console.print(f"[bold]Elasmo demo[/] · {config_file}, {config.ray.nodes} raylets, {config.train.steps} steps")
    console.print(dump(config), style="dim", markup=False, highlight=False)

    _title(console, 1, f"Ingest {config.data.dataset}: bronze, silver, gold")
    _ingest(config, console)
    preflight(config, open_gold(config))
    clock.lap("ingest")

    _title(console, 2, f"Start a Ray cluster of {config.ray.nodes} raylets on this machine")
    with LocalCluster(config.ray) as cluster:
        dashboard = cluster.connect()
        console.print(f"  Ray dashboard  http://{dashboard}" if dashboard else "  no dashboard")
        clock.lap("cluster")

        _title(console, 3, "Train on Ray Data, Ray Train and DeepSpeed, and lose a node")
        trained = _train(config, cluster, console)
        clock.lap("train")

        _title(console, 4, "Publish the best checkpoint, serve it, ask it over HTTP about samples it has never seen")
        served = _serve(config, trained, console, clock)
        gold = open_gold(config)

    run = trained.result.folder
    figures = {
        "run": trained.result.run_id,
        "folder": str(run),
        "gold": gold.snapshot,
        **served,
        "receipts_match_plan": trained.result.receipts.match,
        "committed_steps": trained.result.steps,
        "resize": {
            **trained.resize,
            "losses_compared": trained.compared,
            "losses_max_relative_difference": trained.difference,
        },
        "evaluation": trained.result.evaluation,
        "train_tokens_per_s": trained.tokens_per_s,
        "seconds": clock.laps,
        "config": json.loads(config.model_dump_json()),
    }
    problems = _problems(figures, config)
    figures["problems"] = problems
    (run / "demo.json").write_text(json.dumps(figures, indent=1))
    Path(config.train.storage, "demo.json").write_text(json.dumps(figures, indent=1))
    _report(run)
    _title(console, 5, "Result")
    _show(console, figures, run)
    for problem in problems:
        console.print(f"[red]{problem}[/]")
    raise typer.Exit(1 if problems else 0)


class _Clock:
    """Seconds of each part of the demo."""

    def __init__(self) -> None:
        import time

        self._now = time.monotonic
        self._last = self._start = self._now()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self.laps[name] = round(now - self._last, 1)
        self.laps["total"] = round(now - self._start, 1)
        self._last = now


def _ingest(config: Config, console: Console) -> None:
    from elasmo.ingest.ingest import ingest

    result = ingest(config, Path(config.data.dataset))
    for split, rows in result.modalities.items():
        console.print(f"  {split:<8} " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
    console.print(f"  gold snapshot {result.gold}, {len(result.refused)} rows refused, {result.seconds:.1f} s")


def _train(config: Config, cluster: Any, console: Console) -> Trained:
    from elasmo.cli.demo_train import train
    from elasmo.cli.progress import TrainProgress

    with TrainProgress(console, config.train.steps) as progress:
        return train(config, cluster, progress.watch, lambda line: console.print(f"  {line}", highlight=False))


def _serve(config: Config, trained: Trained, console: Console, clock: _Clock) -> dict[str, Any]:
    import logging

    from elasmo.cli import demo_serve
    from elasmo.data.stream import open_gold
    from elasmo.serve.launch import Endpoint
    from elasmo.train.publication import publish

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its import has set the level to INFO

    publication = publish(trained.result.folder)
    serving = config.serve.model_copy(update={"published": str(publication.folder)})
    config = config.model_copy(update={"serve": serving})
    console.print(f"  published step {publication.step} as {publication.name!r} in {publication.folder}")
    gold = open_gold(config)
    with Endpoint(config) as endpoint:
        console.print(f"  {endpoint.model!r} answers at {endpoint.url} after {endpoint.seconds:.1f} s")
        clock.lap("serve")
        answers = demo_serve.ask_all(endpoint.url, endpoint.model, gold, config.serve.request_timeout_s)
        clock.lap("ask")
        equal = demo_serve.pd_equals_single_engine(config, gold)
        clock.lap("compare")
    demo_serve.write_served(trained.result.folder / "served.jsonl", answers)
    return {
        "accuracy": demo_serve.accuracy(answers),
        "asked": len(answers),
        "asked_per_s": round(len(answers) / clock.laps["ask"], 1),
        **demo_serve.latency_ms(answers),
        "pd_tokens_equal_single_engine": equal,
        "published": str(publication.folder),
        "checkpoint_step": publication.step,
    }


def _problems(figures: dict[str, Any], config: Config) -> list[str]:
    """What the demo promised and did not show."""
    problems = [
        f"Held-out accuracy on {name} is {figures['accuracy'].get(name, 0.0):.3f}; {wanted} was wanted."
        for name, wanted in WANTED.items()
        if figures["accuracy"].get(name, 0.0) < wanted
    ]
    if not figures["receipts_match_plan"]:
        problems.append("The receipts of the run do not match its plan.")
    if figures["resize"]["steps_redone"] > config.train.checkpoint_every:
        problems.append(f"The resize redid {figures['resize']['steps_redone']} steps.")
    if not figures["resize"]["losses_max_relative_difference"] <= LOSS_TOLERANCE:
        problems.append("The losses after the resize differ from a run of the new size from the same checkpoint.")
    if not figures["pd_tokens_equal_single_engine"]:
        problems.append("Prefill and decode replicas gave other tokens than a single engine.")
    return problems


def _report(run: Path) -> None:
    from elasmo.cli.report import write

    write(run)


def _title(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/] [bold]{text}[/]")


def _show(console: Console, figures: dict[str, Any], run: Path) -> None:
    resize = figures["resize"]
    phases = ", ".join(f"{name} {value:.1f}" for name, value in resize["seconds"].items() if value is not None)
    rates = ", ".join(f"{value:,.0f} with {world} rank(s)" for world, value in figures["train_tokens_per_s"].items())
    rows = [
        (
            "held-out accuracy over HTTP",
            ", ".join(f"{name} {value:.3f}" for name, value in figures["accuracy"].items()),
        ),
        ("asked", f"{figures['asked']} samples, {figures['asked_per_s']} a second"),
        ("node lost", f"{resize['lost']}: {resize['from_world']} -> {resize['to_world']} ranks"),
        ("steps redone", f"{resize['steps_redone']}, {resize['samples_returned']} samples returned to the plan"),
        ("seconds to the next step", phases),
        (
            f"next {resize['losses_compared']} losses",
            f"at most {resize['losses_max_relative_difference']:.1e} relative from an undisturbed run of the new size",
        ),
        ("receipts match the plan", f"{figures['receipts_match_plan']} for {figures['committed_steps']} steps"),
        ("prefill + decode = one engine", str(figures["pd_tokens_equal_single_engine"])),
        ("training tokens/s", rates),
        ("TTFT, TPOT (median)", f"{figures['ttft_ms']:.1f} ms, {figures['tpot_ms']:.1f} ms"),
        ("seconds", ", ".join(f"{name} {value:.0f}" for name, value in figures["seconds"].items())),
        ("report", str(run / "report.html")),
        ("figures", str(run / "demo.json")),
        ("checkpoint", str(run / "checkpoints" / f"step-{figures['checkpoint_step']:06d}")),
    ]
    lines = [f"  {name:<30} {value}" for name, value in rows]
    lines += [
        "",
        "Go on by hand:",
        "  . .venv/bin/activate",
        f"  elasmo serve ray.address=local serve.published={run / 'published'}",
        '  elasmo chat "Which digit is this?" --image data/digits/sample/scan-0003-is-3.png   # in another terminal',
        f"  tensorboard --logdir {run / 'tensorboard'}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False)
