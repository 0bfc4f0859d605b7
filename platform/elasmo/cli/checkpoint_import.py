"""`elasmo checkpoint import DIR`: a run of ours from what a data-parallel DeepSpeed run saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="What was passed to DeepSpeed's save_checkpoint.")],
    overrides: Overrides = None,
    tag: Annotated[str | None, typer.Option(help="Tag to import; the one in `latest` when left out.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Unpickle any class, which can run code.")] = False,
    config_file: ConfigFile = None,
) -> None:
    """Import a DeepSpeed checkpoint (ZeRO 1, 2 or 3, data parallel) as a new run of the configuration."""
    from elasmo.config import load
    from elasmo.train.checkpoint_import import import_run

    found = import_run(source, load(config_file, overrides or []), tag, trust)
    print(f"imported step {found.manifest.step} of {source} as run {found.run_id} in {found.folder}")
    print(f"  go on    elasmo train --run {found.run_id}")
