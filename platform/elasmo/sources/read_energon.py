"""A folder that `energon prepare` has prepared (Megatron-Energon): tar shards beside .nv-meta, read and never written.

Shards and splits come from .nv-meta, its sample counts are held against what was read, and `field_map` of dataset.yaml
names columns. Column `split` is `train` or `heldout`, which every part that is not train is. Sample loaders are code
and are not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.read_webdataset import records
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import SourceRow

SUFFIXES = ()
META = ".nv-meta/"
INFO = (".info.json", ".info.yaml")
BRACES = re.compile(r"\{([^{}]*)\}")


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The samples of every shard that a split names, in the order of the splits."""
    metas = {file.name.partition(META)[2]: file for file in files if META in file.name}
    info = next((metas[name] for name in INFO if name in metas), None)
    if info is None or "split.yaml" not in metas:
        raise SourceError(
            f"{origin.path!r} holds no {META}{INFO[0]} and split.yaml, so it is not a folder that `energon prepare` "
            "has prepared; prepare it, or read its shards as format: webdataset."
        )
    root = info.name.partition(META)[0]
    shards = {file.name.removeprefix(root): file for file in files}
    counts = _tree(info).get("shard_counts") or {}
    field_map = _field_map(_tree(metas["dataset.yaml"])) if "dataset.yaml" in metas else {}
    for name, split in _splits(metas["split.yaml"]):
        if name not in shards:
            raise SourceError(f"{metas['split.yaml'].name} names shard {name!r}, which is not there; restore the file.")
        number = 0
        for row in records(shards[name]):
            number += 1
            fields = {field: row.values.get(column) for field, column in field_map.items()}
            yield SourceRow(row.place, {"split": split, **row.values, **fields}, row.fault)
        if counts.get(name, number) != number:
            raise SourceError(
                f"{shards[name].name} holds {number} samples, but {info.name} counts {counts[name]}; restore the "
                "shard, or run `energon prepare` again."
            )


def _splits(file: SourceFile) -> Iterator[tuple[str, str]]:
    """(shard, train or heldout) of every shard, each once."""
    tree = _tree(file)
    parts = tree.get("split_parts")
    if not isinstance(parts, dict):
        raise file.broken("split_parts is not an object of lists", "a split file")
    seen = {expanded for pattern in tree.get("exclude") or [] for expanded in expand(str(pattern))}
    for part, patterns in parts.items():
        for shard in (expanded for pattern in patterns or [] for expanded in expand(str(pattern))):
            if shard not in seen:
                seen.add(shard)
                yield shard, "train" if part == "train" else "heldout"


def expand(pattern: str) -> list[str]:
    """The names of a pattern with braces: {0..12}, {000..012} and {a,b}."""
    found = BRACES.search(pattern)
    if found is None:
        return [pattern]
    first, dots, last = found[1].partition("..")
    if dots and first.isdigit() and last.isdigit():
        width = len(first) if first.startswith("0") else 0
        choices = [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    else:
        choices = found[1].split(",")
    return [name for choice in choices for name in expand(pattern[: found.start()] + choice + pattern[found.end() :])]


def _field_map(dataset: Mapping[str, Any]) -> dict[str, str]:
    """Field -> column, for fields that name one: `jpg`, or `json[caption]` for a field of the JSON part."""
    fields = dataset.get("field_map")
    if not isinstance(fields, dict):
        return {}
    return {str(f): re.sub(r"^json\[(\w+)\]$", r"\1", c) for f, c in fields.items() if isinstance(c, str)}


def _tree(file: SourceFile) -> Mapping[str, Any]:
    try:
        content = file.read().decode()
        tree = json.loads(content) if file.name.endswith(".json") else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError) as error:
        raise file.broken(error, "a metadata file") from None
    if not isinstance(tree, dict):
        raise file.broken("it holds no object", "a metadata file")
    return tree
