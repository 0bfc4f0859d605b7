"""`elasmo lint DATASET`: what ingestion would refuse, told before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides


def lint(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder with a contract.yaml.")],
    overrides: Overrides = None,
    config_file: ConfigFile = None,
) -> None:
    """Check a dataset folder without ingesting it; exit status 1 if something would be refused."""
    from collections import Counter

    from elasmo.config import load
    from elasmo.ingest.lint import lint as check

    findings = check(dataset, load(config_file, list(overrides or ())).data.limits)
    for finding in findings:
        typer.echo(finding)
    levels = Counter(error=0, warning=0)
    levels.update(finding.level for finding in findings)
    counted = (f"{count} {level}" + ("" if count == 1 else "s") for level, count in levels.items())
    typer.echo(f"{dataset}: {', '.join(counted)}")
    if levels["error"]:
        raise typer.Exit(1)
