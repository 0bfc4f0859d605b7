"""`elasmo report RUN`: the run as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasmo.cli.options import ConfigFile

if TYPE_CHECKING:
    from elasmo.measure.run_folder import RunFolder


def report(
    run: Annotated[str, typer.Argument(help="The run's folder, or its id below train.storage.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Page to write; report.html of the run by default.")
    ] = None,
    config_file: ConfigFile = None,
) -> None:
    """Write a run's report, one HTML page."""
    from elasmo.config import load
    from elasmo.measure.run_folder import find

    typer.echo(write(find(run, Path(load(config_file).train.storage)), out))


def write(run: Path, out: Path | None = None) -> Path:
    """Renders the run folder `run` to `out`, its report.html by default, and returns the path written."""
    from elasmo.measure.report import render
    from elasmo.measure.run_folder import read

    folder = read(run)
    page = render(folder, commands=commands(folder))
    path = out or run / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def commands(folder: RunFolder) -> list[tuple[str, str]]:
    """What to do next with a run: (what it does, command line) pairs that work as they stand."""
    import shlex

    path = shlex.quote(str(folder.path))
    published = shlex.quote(str(folder.path / "published"))
    serve = ("Serve it with the OpenAI API on http://127.0.0.1:8000", f"elasmo serve serve.published={published}")
    publish = ("Publish its best checkpoint", f"elasmo publish {path}")
    lines = [serve] if folder.published else [publish, serve]
    lines.append(("Ask it, in another terminal", 'elasmo chat "Which digit is this?" --image digit.png'))
    if folder.tensorboard:
        lines.append(("See its curves in TensorBoard", f"tensorboard --logdir {path}/tensorboard"))
    lines.append(("Write this page again", f"elasmo report {path}"))
    return lines
