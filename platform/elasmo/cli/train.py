"""`elasmo train`: trains on the running Ray cluster, or on an emulated one, with progress on the screen."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides


def train(
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    run: Annotated[str | None, typer.Option(help="Id of an unfinished run to take up at its last checkpoint.")] = None,
) -> None:
    """Train on Ray: elastic, from the newest gold snapshot of the dataset."""
    from rich.console import Console

    from elasmo.cli.progress import TrainProgress
    from elasmo.config import dump, load
    from elasmo.data.stream import open_gold
    from elasmo.train import fit
    from elasmo.train.local_cluster import LocalCluster
    from elasmo.train.preflight import preflight

    config = load(config_file, overrides or ())
    preflight(config, open_gold(config), run)
    console = Console(soft_wrap=True)
    console.print(dump(config), markup=False, highlight=False)
    with ExitStack() as stack:
        if config.ray.address == "local":
            cluster = stack.enter_context(LocalCluster(config.ray))
            cluster.connect()
        progress = stack.enter_context(TrainProgress(console, config.train.steps))
        result = fit(config, run_id=run, on_start=progress.watch)
    console.print(f"{result.steps} steps in {result.seconds:.1f} s, receipts match the plan: {result.receipts.match}")
    if result.evaluation is not None:
        accuracy = ", ".join(f"{name} {value:.3f}" for name, value in result.evaluation["accuracy"].items())
        console.print(f"held-out accuracy: {accuracy}")
    figures = "".join(f"  {name:<22}{told}\n" for name, told in result.metering.lines())
    console.print(f"{figures}  {'verdict':<22}{result.verdict}", highlight=False)
    storage = Path(config.train.storage)
    console.print(
        f"  report   elasmo report {storage / result.run_id}\n  publish  elasmo publish {storage / result.run_id}"
    )
    raise typer.Exit(0 if result.receipts.match else 1)
