"""Rows of a layer on disk while it is written, until what only the last of them tells can be added to the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


class Spill:
    """Parts of tables in a folder, uncompressed; read back in the order in which they were added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, list[Path]] = defaultdict(list)

    def declare(self, table: str, schema: pa.Schema) -> None:
        """A table without a part has no rows."""

    def add(self, table: str, rows: pa.Table) -> None:
        parts = self._parts[table]
        parts.append(self.folder / f"{table}-{len(parts):06d}.arrow")
        with pa.OSFile(str(parts[-1]), "wb") as file, pa.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows)

    def read(self, table: str) -> Iterator[pa.Table]:
        """The parts, each deleted once the next is asked for."""
        for part in self._parts.pop(table, ()):
            with pa.OSFile(str(part), "rb") as file:
                yield pa.ipc.open_file(file).read_all()
            part.unlink()
