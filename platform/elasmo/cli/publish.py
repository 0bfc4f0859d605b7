"""`elasmo publish`: makes a run's checkpoint servable, without copying or converting its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def publish(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as runs/digits-20260101-120000.")],
    step: Annotated[int | None, typer.Option(help="Step to publish; the best checkpoint when left out.")] = None,
    name: Annotated[str | None, typer.Option(help="Name in /v1/models; the run's when left out.")] = None,
) -> None:
    """Publish a checkpoint of a run for serving."""
    from elasmo.train.publication import publish as publish_run

    done = publish_run(run, step, name)
    print(f"published {done.name}, step {done.step}, hash {done.model_hash}")
    print(f"  folder  {done.folder}")
    print(f"  serve   elasmo serve serve.published={done.folder}")
