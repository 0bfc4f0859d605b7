"""`elasmo checkpoint verify WHERE`: reads every byte and says what is damaged."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    where: Annotated[str, typer.Argument(help="A checkpoint, a run's folder (all of its checkpoints), or a URL.")],
) -> None:
    """Check every file of a checkpoint, or of all of a run's; exits 1 if one is damaged."""
    from elasmo.measure import units
    from elasmo.train.checkpoint_inspect import verified

    damaged = False
    for item in verified(where):
        damaged = damaged or item.problem is not None
        found = item.problem or f"whole, {units.byte_size(item.bytes)} read at {item.gb_s:.2f} GB/s"
        print(f"{item.name}: {found}")
    if damaged:
        raise typer.Exit(1)
