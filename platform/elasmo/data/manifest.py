"""Snapshots of a lake layer: Parquet shards beside a manifest whose hash is the snapshot's name.

Layout: `<lake>/<dataset>/<layer>/<snapshot id>/{manifest.json, *.parquet}`. A snapshot is written to a temporary
folder, synced, then renamed: it is there whole or not at all. Its id is the first 16 hex digits of the sha256 of the
manifest without its time of creation, so the same content has the same id wherever and whenever it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasmo.stages.stage_ledger import at_part

Layer = Literal["bronze", "silver", "gold", "quarantine"]
FORMAT = 1
MANIFEST = "manifest.json"
LATEST = "latest"
_WRITING = f".writing-{socket.gethostname()}-"
_NOT_HASHED = ("id", "sha256", "created")


class SnapshotError(ValueError):
    """A snapshot that is absent or damaged, in a sentence that names the file and the mend."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot on disk; its manifest has been checked against its id, its files are checked as they are read."""

    path: Path
    manifest: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.manifest["id"])

    @property
    def sha256(self) -> str:
        return str(self.manifest["sha256"])

    @property
    def details(self) -> dict[str, Any]:
        details: dict[str, Any] = self.manifest["details"]
        return details

    @property
    def parent(self) -> dict[str, str]:
        """What a child's manifest records of this snapshot."""
        return {"layer": self.manifest["layer"], "id": self.id, "sha256": self.sha256}

    def tables(self) -> dict[str, int]:
        """Rows of each table."""
        return {name: int(table["rows"]) for name, table in self.manifest["tables"].items()}

    def shards(self, table: str) -> list[dict[str, Any]]:
        """File, rows, bytes and sha256 of each shard of a table, in row order."""
        shards: list[dict[str, Any]] = self.manifest["tables"][table]["shards"]
        return shards

    def read_shard(self, shard: Mapping[str, Any], columns: Sequence[str] | None = None) -> pa.Table:
        """A shard, refused if a byte differs from the manifest."""
        # Not `read_table`, nor threads: Arrow's pool then aborts one process in ten at exit (apache/arrow#34314).
        return pq.ParquetFile(pa.BufferReader(self._checked(shard))).read(columns=columns, use_threads=False)

    def read(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The shards of a table, one at a time."""
        for shard in self.shards(table):
            at_part(shard["file"], shard["rows"], shard["bytes"])
            yield self.read_shard(shard, columns)
        at_part(None)

    def read_all(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        return pa.concat_tables(self.read(table, columns))

    def locate(self, table: str, column: str, values: Collection[str]) -> dict[str, tuple[str, int]]:
        """(file, row in it) of the first row with each value in a text column; values that no row has are left out.

        Reads that one column and hashes nothing: it says where to look, not what is there.
        """
        wanted = pa.array(sorted(values), pa.string())
        found: dict[str, tuple[str, int]] = {}
        for shard in self.shards(table):
            names = pq.ParquetFile(self.path / str(shard["file"])).read(columns=[column], use_threads=False).column(0)
            for row in np.flatnonzero(pc.is_in(names, wanted).to_numpy()):
                found.setdefault(names[int(row)].as_py(), (str(shard["file"]), int(row)))
            if len(found) == len(wanted):
                break
        return found

    def size_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(int(file["bytes"]) for file in self._files())

    def verify(self) -> None:
        """Hashes every file; raises SnapshotError at the first one that is absent or differs."""
        for file in self._files():
            self._checked(file)

    def _files(self) -> Iterator[dict[str, Any]]:
        for table in self.manifest["tables"].values():
            yield from table["shards"]
        yield from self.manifest["files"]

    def _checked(self, file: Mapping[str, Any]) -> bytes:
        path = self.path / str(file["file"])
        mend = "delete the snapshot's folder and run `elasmo ingest` again."
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SnapshotError(f"{path} cannot be read ({error.strerror}); {mend}") from None
        if hashlib.sha256(content).hexdigest() != file["sha256"]:
            raise SnapshotError(f"{path} differs from its manifest ({len(content)} of {file['bytes']} bytes); {mend}")
        return content


@dataclass
class SnapshotWriter:
    """Writes one snapshot: `add` shards and `add_folder` inside a `with` block, then read `snapshot`.

    Nothing is visible under the snapshot's name until the block ends without an error.
    """

    lake: Path
    dataset: str
    layer: Layer
    parents: Sequence[Mapping[str, str]] = ()
    details: dict[str, Any] = field(default_factory=dict)
    _tables: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _extra: list[dict[str, Any]] = field(default_factory=list, init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """The temporary folder."""
        return layer_folder(self.lake, self.dataset, self.layer) / f"{_WRITING}{os.getpid()}"

    @property
    def snapshot(self) -> Snapshot:
        """The finished snapshot."""
        if self._snapshot is None:
            raise RuntimeError("The snapshot is complete only when its `with` block has ended.")
        return self._snapshot

    def __enter__(self) -> SnapshotWriter:
        for left in self.folder.parent.glob(f"{_WRITING}*"):
            if left == self.folder or not alive(int(left.name.rsplit("-", 1)[1])):
                shutil.rmtree(left, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._snapshot = self._commit()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def declare(self, table: str, schema: pa.Schema) -> None:
        """Names a table, which may stay empty."""
        columns = [{"name": column.name, "type": str(column.type)} for column in schema]
        self._tables.setdefault(table, {"rows": 0, "schema": columns, "shards": []})

    def add(self, table: str, rows: pa.Table) -> None:
        """Writes `rows` as the next shard of `table`."""
        self.declare(table, rows.schema)
        entry = self._tables[table]
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", compression_level=1, use_dictionary=False)
        name = f"{table}-{len(entry['shards']):05d}.parquet"
        record = self._write(name, sink.getvalue().to_pybytes())
        entry["shards"].append({**record, "rows": rows.num_rows})
        entry["rows"] += rows.num_rows

    def add_folder(self, folder: Path) -> None:
        """Takes over the files of a sub-folder that was written into `self.folder`."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._extra.append(self._write(path.relative_to(self.folder).as_posix(), path.read_bytes()))

    def _write(self, name: str, content: bytes) -> dict[str, Any]:
        _write_synced(self.folder / name, content)
        return {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def _commit(self) -> Snapshot:
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "layer": self.layer,
            "dataset": self.dataset,
            "parents": [dict(parent) for parent in self.parents],
            "tables": self._tables,
            "files": self._extra,
            "details": self.details,
        }
        sha256 = manifest_hash(manifest)
        manifest |= {"id": sha256[:16], "sha256": sha256, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        _write_synced(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        _sync_folder(self.folder)
        target = layer_folder(self.lake, self.dataset, self.layer) / manifest["id"]
        if target.exists():
            try:
                standing = open_snapshot(self.lake, self.dataset, self.layer, manifest["id"])
                standing.verify()
                return standing
            except SnapshotError:
                shutil.rmtree(target)
        try:
            os.rename(self.folder, target)
        except OSError:  # another process has just written the same snapshot
            return open_snapshot(self.lake, self.dataset, self.layer, manifest["id"])
        _sync_folder(target.parent)
        return Snapshot(target, manifest)


def layer_folder(lake: Path, dataset: str, layer: Layer) -> Path:
    return lake / dataset / layer


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """sha256 of the manifest's canonical JSON, without what names it and when it was written."""
    return canonical_hash({key: value for key, value in manifest.items() if key not in _NOT_HASHED})


def canonical_hash(value: Any) -> str:
    """sha256 of a JSON value with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def code_hash(*modules: ModuleType) -> str:
    """sha256 over the sources of the modules that make a layer: other code, other result."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(module.__file__ or "").read_bytes())
    return digest.hexdigest()


def open_snapshot(lake: Path, dataset: str, layer: Layer, snapshot: str) -> Snapshot:
    """The snapshot `snapshot` of a layer, its manifest checked.

    Raises:
        SnapshotError: no such snapshot, or a manifest that does not hash to its name.
    """
    path = layer_folder(lake, dataset, layer) / snapshot
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except OSError:
        raise SnapshotError(
            f"{lake} has no {layer} snapshot {snapshot!r} of dataset {dataset!r}; `elasmo ingest data/{dataset}` "
            "writes one."
        ) from None
    except ValueError:
        manifest = {}
    if not isinstance(manifest, dict) or manifest_hash(manifest)[:16] != snapshot or manifest.get("id") != snapshot:
        raise SnapshotError(f"{path / MANIFEST} is damaged; delete {path} and run `elasmo ingest` again.")
    return Snapshot(path, manifest)


def mark_latest(snapshot: Snapshot) -> None:
    """Makes `snapshot` the one that readers get when they name none."""
    replace_text(snapshot.path.parent / LATEST, snapshot.id)


def latest(lake: Path, dataset: str, layer: Layer) -> str | None:
    """Id of the snapshot that was ingested last, None when there is none."""
    path = layer_folder(lake, dataset, layer) / LATEST
    return path.read_text().strip() if path.is_file() else None


def remember(snapshot: Snapshot, fingerprint: str) -> None:
    """Files `snapshot` under the hash of everything that it was computed from."""
    replace_text(snapshot.path.parent / "inputs" / fingerprint, snapshot.id)


def recall(lake: Path, dataset: str, layer: Layer, fingerprint: str) -> Snapshot | None:
    """The intact snapshot that was computed from this input before, None when there is none."""
    path = layer_folder(lake, dataset, layer) / "inputs" / fingerprint
    if not path.is_file():
        return None
    try:
        snapshot = open_snapshot(lake, dataset, layer, path.read_text().strip())
        snapshot.verify()
        quarantine = snapshot.details.get("quarantine")
        if quarantine is not None:
            open_snapshot(lake, dataset, "quarantine", quarantine).verify()
    except SnapshotError:
        return None
    return snapshot


def alive(process: int) -> bool:
    """Whether a process of this host lives."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def replace_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    _write_synced(draft, text.encode())
    os.replace(draft, path)


def _write_synced(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
