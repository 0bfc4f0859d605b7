"""A source that needs no code: a JSONL file of conversations beside the contract, and the media files it points at.

A line holds `id` and `messages`, and may hold `split` and `concept`. A message holds `role` and `segments`; a segment
is one of {"text": ...}, {"image": path}, {"audio": path}, {"table": {field: value}}. Paths are relative to the folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from elasmo.data.draft import Draft, DraftSegment, Record, Ref, Turn
from elasmo.sources.contract import CONTRACT_FILE, Column, Contract, SplitRule, TableSpec
from elasmo.sources.quarantine import RowError
from elasmo.sources.source import Row, SilverRows, SourceError

ROWS, MEDIA = "rows", ("images", "audio")
KINDS = {"image": "images", "audio": "audio"}
KEYS = ("id", "split", "concept", "messages")


class FilesSource:
    """Lands every line as it stands and every media file that a readable line names."""

    def __init__(self, folder: Path, contract: Contract) -> None:
        self.folder = folder
        self.contract = contract
        self.path = folder / contract.rows
        if not self.path.is_file():
            raise SourceError(f"{self.path} does not exist; the contract's `rows` must name a JSONL file beside it.")

    @property
    def tables(self) -> dict[str, TableSpec]:
        """Media first, so that `messages` is checked against media that stand."""
        key = Column(type="string")
        rows = {
            "key": key,
            "id": key,
            "split": Column(type="category", categories=("train", "heldout"), nullable=True),
            "concept": key,
            "messages": Column(type="messages"),
        }
        return {
            "images": TableSpec(columns={"key": key, "data": Column(type="image")}),
            "audio": TableSpec(columns={"key": key, "data": Column(type="audio")}),
            ROWS: TableSpec(columns=rows, unique=("id", "messages")),
        }

    @property
    def splits(self) -> dict[str, SplitRule]:
        return {ROWS: SplitRule(concept="concept", column="split", heldout_fraction=self.contract.heldout_fraction)}

    @property
    def code(self) -> tuple[ModuleType, ...]:
        return (sys.modules[__name__],)

    def describe(self) -> dict[str, dict[str, str]]:
        names = sorted({self.contract.rows, CONTRACT_FILE} | {path for _, path in self.media()})
        present = [name for name in names if (self.folder / name).is_file()]
        return {"files": {n: hashlib.sha256((self.folder / n).read_bytes()).hexdigest() for n in present}, "inputs": {}}

    def landed(self, table: str) -> dict[str, bool]:
        return {"key": False, "data": True} if table in MEDIA else {"key": False, "line": False}

    def land(self) -> Iterator[tuple[str, Row]]:
        for table, path in self.media():
            file = self.folder / path
            yield table, {"key": path, "data": file.read_bytes() if file.is_file() else None}
        for number, line in self.lines():
            yield ROWS, {"key": f"{self.contract.rows}:{number}", "line": line}

    def release(self) -> None:
        """Nothing was kept."""

    def parse(self, table: str, row: Row) -> Row:
        if table in MEDIA:
            if row["data"] is None:
                raise RowError(f"file {row['key']} does not exist beside {self.contract.rows}")
            return row
        tree = _parse_line(row["line"])
        unknown = [key for key in tree if key not in KEYS]
        if unknown:
            raise RowError(f"unknown key {unknown[0]!r}; a line takes {', '.join(KEYS)}")
        name = str(tree.get("id", row["key"]))
        concept = tree.get("concept")
        return {
            "key": row["key"],
            "id": name,
            "split": tree.get("split"),
            "concept": name if concept is None else str(concept),
            "messages": tree.get("messages"),
        }

    def drafts(self, silver: SilverRows) -> Iterator[Draft]:
        for row in silver.rows(ROWS):
            turns = tuple(
                Turn(message["role"], tuple(_segment(segment) for segment in message["segments"]))
                for message in json.loads(row["messages"])
            )
            yield Draft(row["id"], turns, row["split"], row["concept"], Ref(ROWS, row["key"]))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of each line that is not blank."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\n")

    def media(self) -> list[tuple[str, str]]:
        """(table, path) of each medium that a readable line names, each once, in order."""
        found: dict[tuple[str, str], None] = {}
        for _, line in self.lines():
            try:
                messages = _parse_line(line).get("messages")
            except RowError:
                continue
            for segment in _segments(messages):
                for kind, table in KINDS.items():
                    path = segment.get(kind)
                    if isinstance(path, str) and inside(path):
                        found[table, path] = None
        return list(found)


def inside(path: str) -> bool:
    """Whether a path names something below the dataset folder by its spelling alone."""
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path


def _parse_line(line: str) -> dict[str, Any]:
    try:
        tree = json.loads(line)
    except ValueError as error:
        raise RowError(f"the line is not valid JSON: {error}") from None
    if not isinstance(tree, dict):
        raise RowError(f"the line holds a {type(tree).__name__}; it must hold an object with id and messages")
    return tree


def _segments(messages: object) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else []:
        segments = message.get("segments") if isinstance(message, dict) else None
        for segment in segments if isinstance(segments, list) else []:
            if isinstance(segment, dict):
                yield segment


def _segment(segment: Mapping[str, Any]) -> DraftSegment:
    ((kind, value),) = segment.items()
    if kind == "text":
        return str(value)
    return Record(value) if kind == "table" else Ref(KINDS[kind], value)
