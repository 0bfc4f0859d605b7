"""A folder that Hugging Face `datasets` wrote with save_to_disk, read through its Arrow files without that package.

Class labels land as their names. Of a DatasetDict each split is read, and column `split` is `train` or `heldout`: every
split that is not named train is held out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.read_arrow import batches, values_of
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import SourceRow

SUFFIXES = (".arrow", ".json")
STATE, INFO, DICT = "state.json", "dataset_info.json", "dataset_dict.json"


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The rows of every split, numbered from 1 in each Arrow file."""
    named = {file.name: file for file in files}
    states = [file for file in files if file.name.rpartition("/")[2] == STATE]
    if not states:
        raise SourceError(
            f"{origin.path!r} holds no {STATE}, so it is not a folder that datasets.save_to_disk wrote; name that "
            "folder, or read its files as format: arrow or parquet."
        )
    splits = any(file.name.rpartition("/")[2] == DICT for file in files)
    for state in states:
        folder = state.name.removesuffix(STATE)
        extra = {"split": "train" if folder.split("/")[-2] == "train" else "heldout"} if splits else {}
        labels = _labels(_json(named[folder + INFO])) if folder + INFO in named else {}
        for entry in _data_files(state):
            if folder + entry not in named:
                raise SourceError(f"{state.name} names {entry!r}, which is not beside it; restore the file.")
            yield from _rows(named[folder + entry], labels, extra)


def _rows(file: SourceFile, labels: Mapping[str, Sequence[str]], extra: Mapping[str, str]) -> Iterator[SourceRow]:
    number = 0
    for batch in batches(file):
        for values in values_of(batch):
            number += 1
            names = {column: _name(values.get(column), labels[column]) for column in labels}
            yield SourceRow(f"{file.name}:{number}", {**extra, **values, **names}, file=file)


def _name(value: Any, names: Sequence[str]) -> Any:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _data_files(state: SourceFile) -> list[str]:
    entries = _json(state).get("_data_files")
    try:
        return [str(entry["filename"]) for entry in entries]  # type: ignore[union-attr]
    except (TypeError, KeyError):
        raise state.broken("_data_files is not a list of files", "a dataset state") from None


def _labels(info: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of each column of class labels."""
    features = info.get("features") or {}
    return {
        column: list(feature["names"])
        for column, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def _json(file: SourceFile) -> Mapping[str, Any]:
    try:
        tree = json.loads(file.read())
    except ValueError as error:
        raise file.broken(error, "a JSON file") from None
    if not isinstance(tree, dict):
        raise file.broken("it holds no object", "a JSON file")
    return tree
