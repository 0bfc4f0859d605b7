"""Snapshots as Apache Iceberg tables, for engines that read those: a copy of the rows, one Iceberg snapshot for each.

`<dataset>.<layer>_<table>` holds what the snapshot exported last holds; earlier ones stay readable by Iceberg's own
time travel. The property `elasmo.manifest` of each Iceberg snapshot is the sha256 of the manifest its rows came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from elasmo.data.manifest import Snapshot, SnapshotError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

MANIFEST, SNAPSHOT = "elasmo.manifest", "elasmo.snapshot"
CATALOG_FILE = "catalog.db"


class IcebergError(ValueError):
    """A snapshot that cannot be exported, in one sentence."""


@dataclass(frozen=True)
class Exported:
    """An Iceberg table, its rows, and whether it held them already."""

    name: str
    rows: int
    stood: bool


def local_catalog(warehouse: Path) -> Catalog:
    """A catalog in a SQLite file of the warehouse's folder, which is made where there is none.

    Raises:
        IcebergError: pyiceberg is not installed.
    """
    _require()
    from pyiceberg.catalog.sql import SqlCatalog

    folder = warehouse.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("elasmo", uri=f"sqlite:///{folder / CATALOG_FILE}", warehouse=folder.as_uri())


def named_catalog(name: str) -> Catalog:
    """A catalog of pyiceberg's own configuration (`.pyiceberg.yaml`).

    Raises:
        IcebergError: pyiceberg is not installed, or cannot open such a catalog.
    """
    _require()
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name)
    except Exception as error:  # whatever the catalog's client raises
        raise IcebergError(f"Catalog {name!r} cannot be opened ({error}); name one of .pyiceberg.yaml.") from error


def export(snapshot: Snapshot, catalog: Catalog) -> list[Exported]:
    """Makes the Iceberg tables of a snapshot hold its rows; a table that does already is left alone.

    Numbers that Iceberg has not (uint8, int16) become int32; a column that is gone stays, without values. A table
    changes in one commit, or not at all.

    Raises:
        IcebergError: a column has changed its type since the last export.
        SnapshotError: a shard that is absent or damaged.
    """
    dataset, layer = snapshot.manifest["dataset"], snapshot.manifest["layer"]
    catalog.create_namespace_if_not_exists(dataset)
    return [_export(snapshot, table, catalog, (dataset, f"{layer}_{table}")) for table in snapshot.manifest["tables"]]


def _export(snapshot: Snapshot, table: str, catalog: Catalog, name: tuple[str, str]) -> Exported:
    from pyiceberg.exceptions import ResolveError, ValidationError

    properties = {MANIFEST: snapshot.sha256, SNAPSHOT: snapshot.id}
    there = catalog.load_table(name) if catalog.table_exists(name) else None
    rows, dotted = snapshot.tables()[table], ".".join(name)
    if there is not None and _manifest_of(there) == snapshot.sha256:
        return Exported(dotted, rows, True)
    shards = snapshot.read(table)
    first = next(shards, None)
    if first is None:
        if there is not None:
            there.delete(snapshot_properties=properties)
        return Exported(dotted, 0, there is None)
    try:
        making = catalog.create_table_transaction(name, first.schema) if there is None else there.transaction()
        with making as transaction:
            if there is not None:
                with transaction.update_schema() as update:
                    update.union_by_name(first.schema)
            (transaction.append if there is None else transaction.overwrite)(first, snapshot_properties=properties)
            for shard in shards:
                transaction.append(shard, snapshot_properties=properties)
    except SnapshotError:
        raise
    except (ValueError, TypeError, ValidationError, ResolveError) as error:
        raise IcebergError(
            f"Iceberg table {dotted} cannot take the rows of snapshot {snapshot.id} ({_head(error)}); drop the table, "
            "or export to another warehouse."
        ) from error
    return Exported(dotted, rows, False)


def _manifest_of(table: Table) -> str | None:
    current = table.current_snapshot()
    return None if current is None or current.summary is None else current.summary.additional_properties.get(MANIFEST)


def _head(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _require() -> None:
    if find_spec("pyiceberg") is None:
        raise IcebergError("Export to Iceberg needs the Python package pyiceberg; pip install 'elasmo[iceberg]'.")
