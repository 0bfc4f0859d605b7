"""Fragments: any split of tensors reads back whole, and damage is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import CheckpointError, FragmentReader, Manifest, read_manifest, split_evenly

SHAPES = {"a.weight": (5, 3), "a.bias": (7,), "b": (1,)}


def make(folder: Path, world: int = 3) -> tuple[Path, dict[str, torch.Tensor]]:
    values = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    temporary = folder / ".tmp"
    temporary.mkdir()
    files, fragments = [], []
    for rank in range(world):
        slices = [
            (name, start, {"weight": values[name].view(-1)[start:stop]})
            for name, start, stop in split_evenly(SHAPES, rank, world)
        ]
        file, parts = write_file(temporary / f"rank-{rank}.safetensors", slices)
        files.append(file)
        fragments += parts
    commit(
        temporary, folder / "step-000001", Manifest(1, SHAPES, ("weight",), tuple(fragments), tuple(files), {"x": 1})
    )
    return folder / "step-000001", values


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 7))
def test_an_even_split_covers_every_element_once(sizes: list[int], world: int) -> None:
    shapes = {str(i): (size,) for i, size in enumerate(sizes)}
    seen = [
        (name, element)
        for rank in range(world)
        for name, start, stop in split_evenly(shapes, rank, world)
        for element in range(start, stop)
    ]
    assert sorted(seen) == sorted((str(i), e) for i, size in enumerate(sizes) for e in range(size))


@pytest.mark.parametrize("world", [1, 2, 5])
def test_tensors_and_ranges_read_back_exactly(tmp_path: Path, world: int) -> None:
    folder, values = make(tmp_path, world)
    reader = FragmentReader(folder)
    for name, value in values.items():
        assert torch.equal(reader.tensor(name), value)
        numel = math.prod(SHAPES[name])
        for start in range(numel):
            for stop in range(start + 1, numel + 1):
                assert torch.equal(reader.read(name, "weight", start, stop), value.view(-1)[start:stop])
    assert read_manifest(folder).meta == {"x": 1}


def test_a_flipped_byte_is_refused_with_file_and_tensor(tmp_path: Path) -> None:
    folder, _ = make(tmp_path)
    victim = folder / "rank-1.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    held = next(f.tensor for f in read_manifest(folder).fragments if f.file == victim.name)
    with pytest.raises(CheckpointError, match=rf"rank-1\.safetensors differs .*'{held}'"):
        FragmentReader(folder).verify()
    with pytest.raises(CheckpointError, match="differs"):
        for name in SHAPES:
            FragmentReader(folder).tensor(name)


def test_a_missing_file_is_refused_with_a_tensor_it_held(tmp_path: Path) -> None:
    folder, _ = make(tmp_path)
    (folder / "rank-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"rank-0\.safetensors is missing; it holds tensor 'a.weight'"):
        FragmentReader(folder).verify()


def test_unknown_tensor_state_and_folder_are_named(tmp_path: Path) -> None:
    folder, _ = make(tmp_path)
    reader = FragmentReader(folder)
    with pytest.raises(CheckpointError, match="no tensor 'zzz'"):
        reader.tensor("zzz")
    with pytest.raises(CheckpointError, match="lacks state 'exp_avg' of tensor 'b'"):
        reader.tensor("b", "exp_avg")
    with pytest.raises(CheckpointError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)


def test_fragments_with_a_gap_or_an_overlap_are_not_committed(tmp_path: Path) -> None:
    folder, _ = make(tmp_path)
    manifest = read_manifest(folder)
    last = manifest.fragments[-1]
    (tmp_path / ".again").mkdir()
    for broken in (manifest.fragments[:-1], (*manifest.fragments, last)):
        with pytest.raises(CheckpointError, match=last.tensor):
            commit(tmp_path / ".again", tmp_path / "step-000002", dataclasses.replace(manifest, fragments=broken))
    assert not (tmp_path / "step-000002").exists()


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    folder, _ = make(tmp_path)
    raw = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**raw, "format": 9}))
    with pytest.raises(CheckpointError, match="format is 9"):
        read_manifest(folder)
