"""What a silver snapshot holds more than once, counted exactly: equal media and messages, what both splits share."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasmo.data.manifest import Snapshot
from elasmo.sources.contract import TableSpec

MEDIA, CONTENT = ("image", "audio"), ("image", "audio", "messages")
TABLE_OF = {"image": "images", "audio": "audio"}
"""Tables that segments of messages point into (`files.py`)."""


@dataclass(frozen=True)
class Repeats:
    """Values that occur again, and concepts and media on both sides of the split.

    Attributes:
        values: `table.column` of media and messages to (values, values equal to an earlier one).
        concepts: table to (concepts, those that are in both splits).
        media: distinct media in a split; the same bytes in two tables are one.
        leaked: (`table/key`, `table/key`) in train and held out, of each medium that both splits have.
    """

    values: Mapping[str, tuple[int, int]]
    concepts: Mapping[str, tuple[int, tuple[str, ...]]]
    media: int
    leaked: tuple[tuple[str, str], ...]


def find_repeats(silver: Snapshot, tables: Mapping[str, TableSpec]) -> Repeats:
    """One pass over the shards; what is kept is a digest of each medium and conversation, and the concepts."""
    values: dict[str, tuple[int, int]] = {}
    concepts: dict[str, dict[str, set[str]]] = {table: defaultdict(set) for table in tables}
    digests: dict[str, str] = {}
    places: dict[str, dict[str, str]] = defaultdict(dict)
    referred: list[tuple[str, str]] = []
    for table, spec in tables.items():
        content = [name for name, column in spec.columns.items() if column.type in CONTENT]
        seen: dict[str, set[str]] = {name: set() for name in content}
        count = dict.fromkeys(content, 0)
        for row in _rows(silver, table, [spec.key, "split", "concept", *content]):
            split, name = row["split"], f"{table}/{row[spec.key]}"
            if split is not None and row["concept"] is not None:
                concepts[table][row["concept"]].add(split)
            for column in content:
                if row[column] is None:
                    continue
                digest = _digest(row[column])
                count[column] += 1
                seen[column].add(digest)
                if spec.columns[column].type in MEDIA:
                    digests[name] = digest
                    if split is not None:
                        places[digest].setdefault(split, name)
                elif split is not None:
                    referred += [(reference, split) for reference in references(row[column])]
        values |= {f"{table}.{column}": (count[column], count[column] - len(seen[column])) for column in content}
    for reference, split in referred:
        if reference in digests:
            places[digests[reference]].setdefault(split, reference)
    both = {
        table: tuple(sorted(c for c, splits in found.items() if len(splits) > 1)) for table, found in concepts.items()
    }
    leaked = tuple((found["train"], found["heldout"]) for found in places.values() if len(found) > 1)
    return Repeats(values, {t: (len(found), both[t]) for t, found in concepts.items() if found}, len(places), leaked)


def _rows(silver: Snapshot, table: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    for shard in silver.read(table, list(dict.fromkeys(columns))):
        for batch in shard.to_batches(max_chunksize=256):
            yield from batch.to_pylist()


def references(messages: str) -> Iterator[str]:
    """`table/key` of each medium that a conversation points at."""
    for message in json.loads(messages):
        for segment in message["segments"]:
            yield from (f"{TABLE_OF[kind]}/{key}" for kind, key in segment.items() if kind in TABLE_OF)


def _digest(value: bytes | str) -> str:
    return hashlib.blake2b(value if isinstance(value, bytes) else value.encode(), digest_size=16).hexdigest()
