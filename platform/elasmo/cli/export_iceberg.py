"""`elasmo export-iceberg`: writes a snapshot of the lake as Apache Iceberg tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from elasmo.cli.options import ConfigFile, Overrides


def export_iceberg(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder or its name.")],
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    layer: Annotated[Literal["bronze", "silver", "gold"], typer.Option("--layer", help="Layer of the lake.")] = "gold",
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="Snapshot id; the latest when left out.", show_default=False)
    ] = None,
    warehouse: Annotated[
        Path | None,
        typer.Option("--warehouse", help="Folder of the tables; beside the lake when left out.", show_default=False),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", help="A catalog of .pyiceberg.yaml, instead of a folder.", show_default=False),
    ] = None,
) -> None:
    """Export an ingested dataset to Iceberg tables; a snapshot that they hold already is not copied again."""
    from elasmo.config import load
    from elasmo.data.manifest import SnapshotError, latest, open_snapshot
    from elasmo.ingest.iceberg import export, local_catalog, named_catalog

    config = load(config_file, list(overrides or ()))
    lake, name = Path(config.data.lake), dataset.resolve().name
    chosen = snapshot or latest(lake, name, layer)
    if chosen is None:
        raise SnapshotError(f"{lake} has no {layer} snapshot of dataset {name!r}; run `elasmo ingest` on its folder.")
    folder = warehouse if warehouse is not None else lake.with_name("iceberg")
    opened = local_catalog(folder) if catalog is None else named_catalog(catalog)
    for table in export(open_snapshot(lake, name, layer, chosen), opened):
        print(f"{table.name}  {table.rows} rows{' stood already' if table.stood else ''}")
    print(f"exported {layer} {chosen} of {name} to {folder if catalog is None else f'catalog {catalog}'}")
