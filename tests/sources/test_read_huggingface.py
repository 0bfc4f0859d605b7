"""Hugging Face folders: splits and class names land, and what is not there is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from elasmo.sources.source import SourceError
from tests.sources.test_tables import SHARDS
from tests.sources.twelve import COLUMNS, bronze, contract, ingested, landed, rows

ORIGIN = {"format": "huggingface", "path": "huggingface"}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    shutil.copytree(SHARDS / "huggingface", tmp_path / "pets/huggingface")
    return contract(tmp_path / "pets", ORIGIN)


def test_splits_become_train_and_heldout(pets: Path) -> None:
    tables = {"pets": {"columns": {**COLUMNS, "split": {"type": "category", "categories": ["train", "heldout"]}}}}
    contract(pets, ORIGIN, tables=tables, splits={"pets": {"concept": "key", "column": "split"}})
    result, _ = ingested(pets)
    assert {split: sum(counts.values()) for split, counts in result.modalities.items()} == {"train": 9, "heldout": 3}


def test_one_split_of_the_folder_can_be_named(pets: Path) -> None:
    assert rows(bronze(contract(pets, {**ORIGIN, "path": "huggingface/test"}))) == landed()[9:]


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("train/data-00000-of-00001.arrow", None, r"huggingface/train/state\.json names 'data-00000-of-00001\.arrow'"),
        ("train/data-00000-of-00001.arrow", b"cut", r"data-00000-of-00001\.arrow is not an Arrow file"),
        ("train/state.json", b"{", r"huggingface/train/state\.json is not a JSON file"),
        ("train/state.json", b'{"_data_files": 3}', r"state\.json is not a dataset state that can be read"),
    ],
)
def test_a_damaged_folder_is_a_sentence(pets: Path, file: str, content: bytes | None, sentence: str) -> None:
    path = pets / "huggingface" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(SourceError, match=sentence):
        bronze(pets)


def test_a_folder_of_another_kind_is_a_sentence(pets: Path) -> None:
    for state in (pets / "huggingface").glob("*/state.json"):
        state.unlink()
    with pytest.raises(SourceError, match=r"'huggingface' holds no state\.json, so it is not a folder that datasets"):
        bronze(pets)


def test_a_label_without_a_name_is_quarantined(pets: Path) -> None:
    info = pets / "huggingface/train/dataset_info.json"
    tree = json.loads(info.read_text())
    tree["features"]["species"]["names"] = ["cat", "dog"]
    info.write_text(json.dumps(tree))
    result, _ = ingested(pets)
    assert {refusal.reason for refusal in result.refused} == {"species is '2'; it must be one of cat, dog, fish"}
    assert len(result.refused) == 3
