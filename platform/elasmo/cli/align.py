"""`elasmo align DATASET`: which columns of a source are those that the contract declares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides


def align(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder whose contract has source: tables.")],
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of each table to look at.")] = 200,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", help="TABLE or TABLE.COLUMN to write into the contract.", metavar="NAME"),
    ] = None,
    config_file: ConfigFile = None,
) -> None:
    """Propose which source columns are the contract's, with scores; only what is accepted is applied."""
    from rich.console import Console
    from rich.table import Table

    from elasmo.config import load
    from elasmo.sources.align import accept as write
    from elasmo.sources.align import propose
    from elasmo.sources.check import Checks
    from elasmo.sources.contract import load_contract
    from elasmo.sources.source import SourceError
    from elasmo.sources.tables import TablesSource

    config = load(config_file, list(overrides or ()))
    contract = load_contract(dataset)
    if contract.source != "tables":
        raise SourceError(f"{dataset} has source: {contract.source}; only source: tables has columns to align.")
    source = TablesSource(dataset, contract, Path(config.data.lake))
    checks = Checks(contract.record, contract.media.limits(config.data.limits), contract.media.sample_rate)
    wanted = set(accept or ())
    known = {
        name for table, spec in contract.tables.items() for name in (table, *(f"{table}.{c}" for c in spec.columns))
    }
    if wanted - known:
        raise SourceError(f"--accept {sorted(wanted - known)[0]!r} is no table or table.column of {dataset}.")
    console, written = Console(), 0
    for name, origin in contract.origins.items():
        found = propose(contract.tables[name], checks, source.peek(name, rows), origin.rename)
        shown = Table("column", "source column", "score", "evidence", title=name, title_justify="left")
        for match in found:
            said = "as named" if match.named else f"{match.score:.2f}"
            shown.add_row(match.column, match.source or "none is likely", said, "; ".join(match.evidence))
        console.print(shown, markup=False)
        written += write(dataset, name, [m for m in found if wanted & {name, f"{name}.{m.column}"}])
    if wanted:
        console.print(f"{written} columns written into the contract as `rename`", markup=False)
