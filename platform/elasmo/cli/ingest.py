"""`elasmo ingest`: a dataset folder into bronze, silver and gold, with the rows that were refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from rich.table import Table

    from elasmo.ingest.ingest import IngestResult

REASONS_SHOWN = 8


def ingest(
    dataset: Annotated[
        Path | None,
        typer.Argument(help="Dataset folder with a contract.yaml; data.dataset when left out.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Make gold of a snapshot that the gate blocks; this is recorded.")
    ] = False,
) -> None:
    """Check, split and tokenise a dataset folder into the lake; what has not changed is not redone."""
    from rich.console import Console

    from elasmo.cli.forecast import warning
    from elasmo.config import load
    from elasmo.data.manifest import Layer
    from elasmo.ingest.ingest import LayerResult
    from elasmo.ingest.ingest import ingest as ingest_folder

    changes = list(overrides or ())
    if dataset is not None and "=" in str(dataset):  # `elasmo ingest data.vocab_size=400`: no folder was given
        changes.insert(0, str(dataset))
        dataset = None
    config = load(config_file, changes)
    folder = dataset if dataset is not None else Path(config.data.dataset)
    console = Console()
    hint = warning(Path(config.data.lake), folder.resolve().name)
    if hint is not None:
        console.print(f"forecast  {hint}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    with console.status(f"reading {folder}") as status:

        def progress(layer: Layer, done: LayerResult | None) -> None:
            if done is None:
                status.update(f"{layer}: {folder}")
            else:
                how = "unchanged, hashes verified" if done.reused else "written"
                console.print(f"[bold]{layer:<6}[/] {done.snapshot}  {how} in {done.seconds:.1f} s")

        result = ingest_folder(config, folder, progress, accept)
    console.print(_rows_table(result))
    if result.refused:
        console.print(f"[yellow]{len(result.refused)} rows in quarantine[/] under {result.lake / result.dataset}")
        for reason, count in result.reasons.most_common(REASONS_SHOWN):
            console.print(f"  {count:>6}  {reason}", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print("no row was refused")
    for sentence in [*result.gate.sentences("block"), *result.gate.sentences("warn")]:
        console.print(f"gate   {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if result.gate.accepted:
        console.print(f"accepted {result.gate.accepted}", markup=False, highlight=False, soft_wrap=True)
    name = "" if folder == Path(config.data.dataset) else f" data.dataset={folder}"
    console.print(f"gold {result.gold} of {result.dataset} in {result.seconds:.1f} s", markup=False)
    console.print(f"  look   elasmo preview {folder}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  next   elasmo train{name}", markup=False, highlight=False, soft_wrap=True)


def _rows_table(result: IngestResult) -> Table:
    """Rows of each table, and gold rows of each split and modality."""
    from rich.table import Table

    table = Table("layer", "content", "rows", "MB", box=None, header_style="bold", pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    for layer in result.layers:
        shown = [(name, rows) for name, rows in layer.rows.items() if layer.layer != "gold"]
        if layer.layer == "gold":
            shown = [(f"{split} {name}", n) for split, names in result.modalities.items() for name, n in names.items()]
        for number, (name, rows) in enumerate(shown):
            first = (layer.layer, f"{layer.bytes / 1e6:.1f}") if number == 0 else ("", "")
            table.add_row(first[0], name, f"{rows:,}", first[1])
    return table
