"""`elasmo checkpoint ls RUN`: a run's committed checkpoints, and what keeps them."""

from __future__ import annotations

from typing import Annotated

import typer


def ls(
    where: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or a folder or URL of checkpoints.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a checkpoint.")] = False,
) -> None:
    """List a run's committed checkpoints, oldest first; what was not committed is counted, not listed."""
    import json

    from elasmo.measure import units
    from elasmo.train.checkpoint_inspect import listed

    found, uncommitted = listed(where)
    for item in found:
        if as_json:
            print(json.dumps(vars(item)))
            continue
        marks = f"  [{', '.join(item.kept_as)}]" if item.kept_as else ""
        size = f"{units.byte_size(item.bytes)} in {item.files} file(s), {item.tensors} tensors"
        print(f"step {item.step:>8}  {size}  {item.layout}  {item.url}{marks}")
    if not as_json:
        print(f"{len(found)} committed" + (f", {uncommitted} not committed (ignored)" if uncommitted else ""))
