"""Computes the profile of a snapshot shard by shard, in one pass that holds one shard at a time."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasmo.content.media_header import read_header
from elasmo.content.sketch import Distinct, Mix, Numbers
from elasmo.content.text_pattern import count_patterns
from elasmo.data.manifest import Snapshot
from elasmo.ingest.profile import ColumnProfile, Profile, TableProfile

MESSAGES = "messages"
UNREADABLE = "unreadable"


def profile_snapshot(snapshot: Snapshot) -> Profile:
    """Reads every shard once, holding one at a time.

    Raises:
        SnapshotError: a shard that is absent or differs from its manifest.
    """
    tables = {}
    for name, entry in snapshot.manifest["tables"].items():
        table = TableProfile()
        for shard in snapshot.read(name):
            table = table.merge(profile_table(shard))
        # As declared: Parquet reads a `list<item: T>` back as a `list<element: T>`, and a table may have no shard.
        tables[name] = replace(table, schema={column["name"]: column["type"] for column in entry["schema"]})
    return Profile(snapshot.manifest["dataset"], snapshot.manifest["layer"], snapshot.id, tables)


def profile_table(rows: pa.Table) -> TableProfile:
    """The profile of the rows of one shard, or of any Arrow table."""
    schema = {column.name: str(column.type) for column in rows.schema}
    columns = {name: profile_column(values) for name, values in unfold(rows)}
    if MESSAGES in columns and "answer" not in columns and columns[MESSAGES].type == "string":
        columns |= profile_messages(rows.column(MESSAGES).to_pylist())
    return TableProfile(rows.num_rows, schema, columns)


def unfold(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Columns by name, a struct as its fields."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_struct(column.type):
            yield name, column
        for position in range(column.type.num_fields if pa.types.is_struct(column.type) else 0):
            yield f"{name}.{column.type.field(position).name}", pc.struct_field(column, position)


def profile_column(values: pa.ChunkedArray) -> ColumnProfile:
    """The profile of one column; structs have to be unfolded before."""
    kind, given = values.type, values.drop_null()
    rows, nulls = len(values), values.null_count
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = given.to_numpy()
        distinct, mix = np.unique(numbers, return_counts=True), Mix(None)
        if pa.types.is_integer(kind):
            mix = Mix.of_counts({str(value): int(count) for value, count in zip(*distinct, strict=True)})
        names = map(str, distinct[0].tolist())
        return ColumnProfile(str(kind), rows, nulls, Distinct.of(names), mix, {"value": Numbers.of(numbers)})
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        media = given.to_pylist()
        distinct_media = Distinct.of({hashlib.blake2b(file, digest_size=16).hexdigest() for file in media})
        return ColumnProfile(str(kind), rows, nulls, distinct_media, Mix(None), *_media(media))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        facets = {"items": Numbers.of(pc.list_value_length(given).to_numpy())}
        inside, found = _media(pc.list_flatten(given).to_pylist()) if pa.types.is_binary(kind.value_type) else ({}, {})
        return ColumnProfile(str(kind), rows, nulls, None, Mix(None), {**facets, **inside}, found)
    return _texts(str(kind), [None if value is None else str(value) for value in values.to_pylist()])


def profile_messages(conversations: Sequence[str | None]) -> dict[str, ColumnProfile]:
    """What conversations are about: `messages.modality`, `messages.answer`, `messages.table.<field>`.

    Bronze holds them as they landed; what is no conversation there counts as null.
    """
    modalities: list[str | None] = []
    answers: list[str | None] = []
    records: list[dict[str, Any]] = []
    for text in conversations:
        turns = _turns(text)
        segments = [segment for turn in turns for segment in turn]
        kinds = {kind for segment in segments for kind in segment}
        about = "+".join(kind for kind in ("image", "audio", "table") if kind in kinds) or "text"
        modalities.append(about if turns else None)
        answers.append("".join(str(segment.get("text", "")) for segment in turns[-1]) if turns else None)
        records += [segment["table"] for segment in segments if isinstance(segment.get("table"), dict)]
    columns = {"modality": _texts("string", modalities), "answer": _texts("string", answers)}
    for name in sorted({name for record in records for name in record}):
        columns[f"table.{name}"] = _json_values([record.get(name) for record in records])
    return {f"{MESSAGES}.{name}": column for name, column in columns.items()}


def _turns(text: str | None) -> list[list[dict[str, Any]]]:
    """The segments of each turn; none for what is no conversation."""
    try:
        turns = [list(turn["segments"]) for turn in json.loads(text or "[]")]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    return turns if all(isinstance(segment, dict) for turn in turns for segment in turn) else []


def _json_values(values: Sequence[Any]) -> ColumnProfile:
    """Numbers, texts and nulls in any mixture: a record says its types nowhere."""
    texts = [None if value is None else str(value) for value in values]
    numbers = [_float(value) for value in values if isinstance(value, int | float)]
    return replace(_texts("json", texts), facets={"value": Numbers.of(np.array(numbers))} if numbers else {})


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.nan


def _texts(kind: str, values: Sequence[str | None]) -> ColumnProfile:
    texts = [text for text in values if text is not None]
    lengths = {"characters": Numbers.of(np.array([len(text) for text in texts], dtype=np.int64))}
    nulls = len(values) - len(texts)
    return ColumnProfile(kind, len(values), nulls, Distinct.of(texts), Mix.of(texts), lengths, count_patterns(texts))


def _media(files: Sequence[bytes]) -> tuple[dict[str, Numbers], dict[str, int]]:
    """Facets of the headers of encoded files, and files of each format."""
    measured: dict[str, list[float]] = {name: [] for name in ("width", "height", "seconds", "rate_hz")}
    formats: Counter[str] = Counter()
    for file in files:
        header = read_header(file)
        formats[UNREADABLE if header is None else header.format] += 1
        for name, value in ({} if header is None else vars(header)).items():
            if name in measured:
                measured[name].append(value)
    facets = {name: Numbers.of(np.array(values)) for name, values in measured.items() if values}
    sizes = {"bytes": Numbers.of(np.array([len(file) for file in files], dtype=np.int64))}
    return {**facets, **sizes}, dict(sorted(formats.items()))
