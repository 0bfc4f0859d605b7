"""`elasmo checkpoint diff A B`: which tensors and settings of two checkpoints differ, and by how much."""

from __future__ import annotations

from typing import Annotated

import typer


def diff(
    first: Annotated[str, typer.Argument(help="A checkpoint's folder or URL.")],
    second: Annotated[str, typer.Argument(help="Another one, of any layout.")],
    moments: Annotated[bool, typer.Option("--moments", help="Compare optimizer moments too.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Tensors to print, the most different first.")] = 10,
) -> None:
    """Compare two checkpoints tensor by tensor, whatever layouts wrote them; exits 1 if they differ."""
    from elasmo.train.checkpoint_inspect import compare

    found = compare(first, second, moments)
    for line in (*found.settings, *found.structure):
        print(line)
    for change in sorted(found.tensors, key=lambda item: -item.relative)[:top]:
        print(f"{change.relative:.3e} relative, {change.largest:.3e} at most  {change.tensor} ({change.state})")
    print(f"{len(found.tensors)} of {found.compared} tensor states differ")
    if found.tensors or found.structure:
        raise typer.Exit(1)
