"""Stored rows as cards to print: which ones, their media as data URIs, and what is known of them."""

from __future__ import annotations

import base64
import json
import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from elasmo.data.gold import SPLITS, Gold, GoldRow, GoldRowError
from elasmo.data.index import MODULES
from elasmo.data.manifest import Snapshot
from elasmo.model.sample import Audio, Image, Segment, Table, Text

MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
)
Item = TypeVar("Item")


class PreviewError(ValueError):
    """A preview that cannot be made, in a sentence that names what was asked for and the mend."""


@dataclass(frozen=True)
class Part:
    """A piece of a row: text, a data URI of a picture or a sound, fields of a record, or what is wrong with it."""

    kind: Literal["text", "image", "audio", "table", "problem"]
    text: str = ""
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Turn:
    """A message, or a column of a table; `name` is its role or the column's name."""

    name: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Card:
    """A row, ready to print."""

    title: str
    facts: tuple[tuple[str, str], ...]
    turns: tuple[Turn, ...]


def spread(items: Sequence[Item], kinds: Sequence[Hashable], count: int, seed: int) -> list[Item]:
    """`count` of the items, drawn by `seed` from each kind in turn, so that rare kinds are seen too."""
    rng = random.Random(seed)
    of_kind: dict[Hashable, list[Item]] = defaultdict(list)
    for item, kind in zip(items, kinds, strict=True):
        of_kind[kind].append(item)
    drawn = [rng.sample(group, min(len(group), count)) for group in of_kind.values()]
    chosen = [group[place] for place in range(count) for group in drawn if place < len(group)]
    return chosen[:count]


def data_uri(content: bytes) -> Part:
    """A picture or a sound with its bytes in it; what no browser shows is said to be so."""
    kind = next((mime for magic, mime in MAGIC if content.startswith(magic)), None)
    if content[:4] == b"RIFF":
        kind = {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(content[8:12])
    if kind is None or kind == "image/tiff":
        return Part("problem", f"{len(content):,} bytes that a browser does not show")
    uri = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return Part("image" if kind.startswith("image") else "audio", uri)


def gold_cards(snapshot: Snapshot, count: int, keys: Sequence[str], seed: int) -> list[Card]:
    """Samples with their messages, split, concept, token costs and sources; a row that cannot be read says why."""
    gold = Gold(snapshot)
    indexes = [gold.index(split) for split in SPLITS]
    row_ids = np.concatenate([index.row_ids for index in indexes]).tolist()
    costs = np.concatenate([index.costs for index in indexes])
    targets = np.concatenate([index.target_tokens for index in indexes])
    if keys:
        stored = (
            key for split in SPLITS for shard in snapshot.read(split, ["key"]) for key in shard["key"].to_pylist()
        )
        places = _places({key: place for place, key in enumerate(stored)}, keys, snapshot)
    else:
        kinds = [
            (split, code) for split, index in zip(SPLITS, indexes, strict=True) for code in index.modality.tolist()
        ]
        places = spread(range(len(row_ids)), kinds, count, seed)
    cards = []
    for place in places:
        tokens = dict(zip(MODULES, costs[place].tolist(), strict=True)) | {"target": int(targets[place])}
        try:
            (row,) = gold.read([row_ids[place]])
        except GoldRowError as error:
            cards.append(Card(f"row {row_ids[place]}", (), (Turn("problem", (Part("problem", str(error)),)),)))
            continue
        cards.append(_gold_card(row, tokens))
    return cards


def table_cards(snapshot: Snapshot, count: int, keys: Sequence[str], seed: int) -> list[Card]:
    """Rows of bronze or silver; a key may be written `table/key`, as samples name their sources."""
    names = [
        (table, key)
        for table in snapshot.tables()
        for shard in snapshot.read(table, [_key_column(snapshot, table)])
        for key in shard.column(0).to_pylist()
    ]
    if keys:
        known = {key: place for place, (_, key) in enumerate(names)}
        known |= {f"{table}/{key}": place for place, (table, key) in enumerate(names)}
        places = _places(known, keys, snapshot)
    else:
        places = spread(range(len(names)), [table for table, _ in names], count, seed)
    cards: dict[int, Card] = {}
    start = 0
    for table in snapshot.tables():
        for shard in snapshot.read(table):
            for place in (place for place in places if start <= place < start + shard.num_rows):
                cards[place] = _table_card(table, names[place][1], shard.slice(place - start, 1).to_pylist()[0])
            start += shard.num_rows
    return [cards[place] for place in places]


def _gold_card(row: GoldRow, tokens: Mapping[str, int]) -> Card:
    facts = (
        ("row", str(row.row_id)),
        ("split", row.split),
        ("modality", row.modality),
        ("concept", row.concept),
        ("tokens", ", ".join(f"{module} {number}" for module, number in tokens.items() if number)),
        ("source", ", ".join(row.source)),
    )
    return Card(row.key, facts, tuple(Turn(m.role, tuple(_segment(s) for s in m.segments)) for m in row.messages))


def _segment(segment: Segment) -> Part:
    match segment:
        case Text(text):
            return Part("text", text)
        case Image(data) | Audio(data):
            return data_uri(data)
        case Table(record):
            return _fields(record)


def _table_card(table: str, key: str, row: Mapping[str, Any]) -> Card:
    values = {name: value for name, value in row.items() if name not in ("split", "concept") and value != key}
    facts = (("table", table), *((name, str(row[name])) for name in ("split", "concept") if row.get(name) is not None))
    return Card(f"{table}/{key}", facts, tuple(Turn(name, (_value(value),)) for name, value in values.items()))


def _value(value: Any) -> Part:
    if value is None:
        return Part("problem", "missing")
    if isinstance(value, bytes):
        return data_uri(value)
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return Part("text", value)
    return _fields(value) if isinstance(value, Mapping) else Part("text", str(value))


def _fields(record: Mapping[str, Any]) -> Part:
    return Part("table", fields=tuple((str(n), "–" if v is None else str(v)) for n, v in record.items()))


def _key_column(snapshot: Snapshot, table: str) -> str:
    """Bronze and silver write the key first where a contract declares it first; else the column called key."""
    columns = [column["name"] for column in snapshot.manifest["tables"][table]["schema"]]
    return "key" if "key" in columns else columns[0]


def _places(known: Mapping[str, int], keys: Iterable[str], snapshot: Snapshot) -> list[int]:
    missing = [key for key in keys if key not in known]
    if missing:
        layer = snapshot.manifest["layer"]
        raise PreviewError(
            f"--keys names {missing[0]!r}, which is in no row of {layer} {snapshot.id}; `--rows 12` shows some."
        )
    return [known[key] for key in keys]
