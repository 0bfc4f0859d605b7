"""`elasmo profile`: what the tables of a snapshot hold, as a table here and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elasmo.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from rich.table import Table

    from elasmo.ingest.profile import ColumnProfile, TableProfile

FOUND_SHOWN = 3


def profile(
    dataset: Annotated[
        Path | None,
        typer.Argument(help="Dataset folder or its name; data.dataset when left out.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    layer: Annotated[
        Literal["bronze", "silver", "gold"], typer.Option("--layer", help="Layer of the lake.")
    ] = "silver",
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="Snapshot id; the latest when left out.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Page to write, one file without assets.", show_default=False)
    ] = None,
) -> None:
    """Show what an ingested dataset holds, column by column, and what the gate found of it."""
    from rich.console import Console

    from elasmo.config import load
    from elasmo.data.manifest import SnapshotError, latest, open_snapshot
    from elasmo.ingest.gate_keeper import profile_of, report_of

    changes = list(overrides or ())
    if dataset is not None and "=" in str(dataset):  # `elasmo profile data.lake=x`: no dataset was given
        changes.insert(0, str(dataset))
        dataset = None
    config = load(config_file, changes)
    lake = Path(config.data.lake)
    name = (dataset if dataset is not None else Path(config.data.dataset)).resolve().name
    chosen = snapshot or latest(lake, name, layer)
    if chosen is None:
        raise SnapshotError(f"{lake} has no {layer} snapshot of dataset {name!r}; run `elasmo ingest` on its folder.")
    opened = open_snapshot(lake, name, layer, chosen)
    made, report = profile_of(opened), report_of(opened)
    console = Console()
    console.print(f"{layer} {chosen} of {name}", style="bold", highlight=False)
    for table, content in made.tables.items():
        console.print(_table(table, content))
        for mix, counts in content.mixes().items():
            console.print(f"  {mix} mix: {_shares(counts)}", markup=False, highlight=False)
    if report is not None:
        against = f"snapshot {report.predecessor}" if report.predecessor else "the contract alone"
        accepted = f", accepted {report.accepted}" if report.accepted else ""
        console.print(f"gate: {report.verdict} against {against}{accepted}", markup=False, highlight=False)
        for sentence in [*report.sentences("block"), *report.sentences("warn")]:
            console.print(f"  {sentence}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if html is not None:
        from elasmo.ingest.profile_page import render

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(render(made, report), encoding="utf-8")
        console.print(f"page {html}", markup=False, highlight=False, soft_wrap=True)


def _table(name: str, content: TableProfile) -> Table:
    """One line for each distribution of each column."""
    from rich.table import Table

    from elasmo.measure import units

    title = f"{name}, {content.rows:,} rows"
    names = ("column", "nulls", "distinct", "of", "min", "median", "max", "mean", "found")
    table = Table(*names, title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for place in (1, 2, 4, 5, 6, 7):
        table.columns[place].justify = "right"
    table.columns[0].overflow = table.columns[3].overflow = "fold"
    for key, column in content.columns.items():
        distinct = "" if column.distinct_values is None else f"{column.distinct_values:,}"
        head = [key, units.percent(column.null_share), distinct]
        for number, (facet, values) in enumerate(column.facets.items()):
            low, high, mean = values.minimum, values.maximum, values.mean
            figures = [low, *values.quantiles([0.5]), high, mean] if values.count else [None] * 4
            shown = ["" if figure is None else units.number(float(figure)) for figure in figures]
            table.add_row(*(head if number == 0 else ["", "", ""]), facet, *shown, _found(column) if not number else "")
        if not column.facets:
            table.add_row(*head, "", "", "", "", "", _found(column))
    return table


def _found(column: ColumnProfile) -> str:
    from elasmo.measure import units

    shares = sorted(column.found_shares().items(), key=lambda item: -item[1])[:FOUND_SHOWN]
    return ", ".join(f"{name} {units.percent(share)}" for name, share in shares)


def _shares(counts: Mapping[str, int]) -> str:
    from elasmo.measure import units

    total = sum(counts.values())
    return ", ".join(f"{name} {units.percent(n / total)}" for name, n in counts.items())
