"""`elasmo star SOURCE`: which tables are facts and which dimensions, as SQL and as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elasmo.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from elasmo.config import Config
    from elasmo.warehouse.relation import Relation
    from elasmo.warehouse.star import Star


def star(
    source: Annotated[str, typer.Argument(help="Dataset folder or its name, or a URL of SQLite or PostgreSQL.")],
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    layer: Annotated[
        Literal["bronze", "silver"], typer.Option("--layer", help="Layer of an ingested dataset to look at.")
    ] = "silver",
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table to look at; all when left out.", metavar="TABLE")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", help="Column that is no reference and no dimension.", metavar="TABLE.COLUMN"),
    ] = None,
    ddl: Annotated[
        Path | None, typer.Option("--ddl", help="File to write the proposal to, as SQL.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the proposal as JSON.")] = False,
    accept: Annotated[
        Path | None,
        typer.Option(
            "--accept", help="Build it here: FILE.db for SQLite, else a folder of Parquet.", show_default=False
        ),
    ] = None,
) -> None:
    """Propose facts and dimensions for the tables of a dataset or database; only --accept builds them."""
    import json
    from dataclasses import asdict
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from elasmo.config import load
    from elasmo.sources.source import SourceError
    from elasmo.warehouse.relation import spooled
    from elasmo.warehouse.star import propose_star
    from elasmo.warehouse.star_build import build
    from elasmo.warehouse.star_sql import ddl as as_sql

    relations = _relations(source, load(config_file, list(overrides or ())), layer, list(tables or ()))
    known = {f"{relation.name}.{column}" for relation in relations for column in relation.columns}
    unknown = sorted(set(without or ()) - known)
    if unknown:
        raise SourceError(f"--without {unknown[0]!r} is no TABLE.COLUMN of {source}.")
    with TemporaryDirectory(prefix="elasmo-star-") as scratch:
        if "://" in source:
            relations = [spooled(relation, Path(scratch) / str(n)) for n, relation in enumerate(relations)]
        proposal, relations = propose_star(relations, set(without or ()))
        console = Console(stderr=as_json)
        if as_json:
            print(json.dumps(asdict(proposal), indent=1))
        else:
            _show(console, proposal)
        if ddl is not None:
            ddl.parent.mkdir(parents=True, exist_ok=True)
            ddl.write_text(as_sql(proposal))
            console.print(f"wrote {ddl}", markup=False, highlight=False)
        if accept is not None:
            rows = build(proposal, relations, accept)
            told = f"built {accept}: {len(rows)} tables, {sum(rows.values()):,} rows; counts and sums equal the source"
            console.print(told, markup=False, highlight=False, soft_wrap=True)


def _relations(source: str, config: Config, layer: Literal["bronze", "silver"], tables: list[str]) -> list[Relation]:
    from elasmo.data.manifest import SnapshotError, latest, open_snapshot
    from elasmo.sources.source import SourceError
    from elasmo.warehouse.relation import database_relations, snapshot_relations

    if "://" in source:
        return database_relations(source, Path.cwd(), tables)
    lake, name = Path(config.data.lake), Path(source).resolve().name
    snapshot = latest(lake, name, layer)
    if snapshot is None:
        raise SnapshotError(
            f"{lake} has no {layer} snapshot of dataset {name!r}; run `elasmo ingest` on its folder, or "
            "name a database by its URL."
        )
    found = snapshot_relations(open_snapshot(lake, name, layer, snapshot))
    absent = [table for table in tables if table not in [relation.name for relation in found]]
    if absent:
        raise SourceError(f"{source} has no table {absent[0]!r}; its tables are {', '.join(r.name for r in found)}.")
    return [relation for relation in found if not tables or relation.name in tables]


def _show(console: Console, proposal: Star) -> None:
    console.print(f"a {proposal.shape} of {len(proposal.tables)} tables", highlight=False)
    console.print(_table(proposal), markup=False)
    for table in proposal.tables:
        for reference in table.references:
            line = f"{table.name}({', '.join(reference.columns)}) -> {reference.to}({', '.join(reference.to_columns)})"
            told = f"  {reference.score:.2f}  {line}: {'; '.join(reference.evidence)}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    for found in proposal.broken:
        told = f"  broken  {found}: {found.orphans:,} of {found.values:,} values are no keys there"
        console.print(told, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for note in proposal.notes:
        console.print(f"  note    {note}", markup=False, highlight=False, soft_wrap=True)
    for table in proposal.tables:
        sort = "" if table.sort is None else f", sorted by {table.sort}"
        cut = "one file" if table.partition is None else "one file for each {1} of {0}".format(*table.partition)
        console.print(f"  parquet {table.name}/: {cut}{sort}", markup=False, highlight=False, soft_wrap=True)


def _table(proposal: Star) -> Table:
    from rich.table import Table

    made = Table("table", "score", "rows", "grain", "key", "measures", "attributes", box=None, header_style="bold")
    for table in proposal.tables:
        measures = [f"{c.name} ({'sum' if c.summed else 'average'})" for c in table.columns if c.role == "measure"]
        others = [c.name for c in table.columns if c.role in ("attribute", "time", "media")]
        key = ", ".join(table.key) or "none"
        made.add_row(
            table.name,
            f"{table.score:.2f}",
            f"{table.rows:,}",
            table.grain,
            key,
            ", ".join(measures),
            ", ".join(others),
        )
    return made
