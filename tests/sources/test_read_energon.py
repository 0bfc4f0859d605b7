"""Energon folders: splits, field names and counts of .nv-meta hold, and nothing in them is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from elasmo.sources.read_energon import expand
from elasmo.sources.source import SourceError
from tests.sources.test_tables import SHARDS, write_tar
from tests.sources.twelve import COLUMNS, bronze, contract, ingested, rows

ORIGIN = {"format": "energon", "path": "energon", "rename": {"__key__": "key", "image": "picture"}}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    shutil.copytree(SHARDS / "energon", tmp_path / "pets/energon")
    return contract(tmp_path / "pets", ORIGIN)


def test_splits_become_train_and_heldout_and_the_folder_stays_as_it_was(pets: Path) -> None:
    before = {path: path.read_bytes() for path in (pets / "energon").rglob("*") if path.is_file()}
    tables = {"pets": {"columns": {**COLUMNS, "split": {"type": "category", "categories": ["train", "heldout"]}}}}
    contract(pets, ORIGIN, tables=tables, splits={"pets": {"concept": "key", "column": "split"}})
    result, _ = ingested(pets)
    assert {split: sum(counts.values()) for split, counts in result.modalities.items()} == {"train": 10, "heldout": 2}
    assert {path: path.read_bytes() for path in (pets / "energon").rglob("*") if path.is_file()} == before


def test_a_sample_loader_beside_the_metadata_is_not_run(pets: Path) -> None:
    meta = pets / "energon/.nv-meta"
    (meta / "sample_loader.py").write_text("raise SystemExit('code of a source was run')")
    (meta / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
        "part_filter: sample_loader.py:part_filter\nsample_loader: sample_loader.py:sample_loader\n"
    )
    contract(pets, {**ORIGIN, "rename": {"__key__": "key", "png": "picture", "txt": "caption"}})
    assert len(rows(bronze(pets))) == 12


def test_yaml_metadata_is_read_without_making_objects(pets: Path) -> None:
    (pets / "energon/.nv-meta/split.yaml").write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(SourceError, match=r"split\.yaml is not a metadata file that can be read"):
        bronze(pets)


def test_a_shard_with_other_counts_than_its_metadata_is_a_sentence(pets: Path) -> None:
    write_tar(pets / "energon/pets-1.tar", [{"r05.txt": b"one"}])
    with pytest.raises(
        SourceError, match=r"energon/pets-1\.tar holds 1 samples, but energon/\.nv-meta/\.info\.json counts 5"
    ):
        bronze(pets)


def test_a_missing_shard_is_a_sentence(pets: Path) -> None:
    (pets / "energon/pets-2.tar").unlink()
    with pytest.raises(SourceError, match=r"split\.yaml names shard 'pets-2\.tar', which is not there"):
        bronze(pets)


def test_a_folder_that_is_not_prepared_is_a_sentence(pets: Path) -> None:
    (pets / "energon/.nv-meta/.info.json").unlink()
    with pytest.raises(SourceError, match="so it is not a folder that `energon prepare` has prepared"):
        bronze(pets)


def test_excluded_shards_and_older_metadata_are_read(pets: Path) -> None:
    meta = pets / "energon/.nv-meta"
    counts = json.loads((meta / ".info.json").read_text())["shard_counts"]
    (meta / ".info.json").unlink()
    (meta / ".info.yaml").write_text(json.dumps({"shard_counts": counts}))
    split = {"split_parts": {"train": ["pets-{0..2}.tar"]}, "exclude": ["pets-1.tar"]}
    (meta / "split.yaml").write_text(json.dumps(split))
    assert len(rows(bronze(pets))) == 7


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}.tar", ["08.tar", "09.tar", "10.tar", "11.tar"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
    ],
)
def test_braces_are_expanded_as_shells_do(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names
