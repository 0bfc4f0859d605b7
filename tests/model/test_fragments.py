"""Fragments: any split of tensors reads back whole, and damage is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise, product
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.model.fragment_writer import Piece, commit, put_manifest, write_file, write_fragments
from elasmo.model.fragments import (
    CheckpointError,
    FragmentReader,
    Manifest,
    encode_manifest,
    fragment_key,
    read_manifest,
    split_evenly,
)
from elasmo.model.safetensors_stream import read_header
from elasmo.model.stores import LocalStore, open_store

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


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_byte_is_refused_with_the_tensor_that_it_lies_in(tmp_path: Path) -> None:
    """DeepSpeed#7601: a flipped byte."""
    folder, _ = make(tmp_path)
    for fragment in read_manifest(folder).fragments:
        victim = folder / fragment.file
        place = read_header(LocalStore(folder), fragment.file)[fragment_key(fragment, "weight")]
        flipped(victim, place.stop - 1)
        said = rf"{fragment.file} differs from its manifest in 'weight' of tensor '{fragment.tensor}', elements "
        with pytest.raises(CheckpointError, match=said + f"{fragment.start}:{fragment.stop};"):
            FragmentReader(folder).verify()
        with pytest.raises(CheckpointError, match=f"of tensor '{fragment.tensor}'"):
            FragmentReader(folder).tensor(fragment.tensor)
        flipped(victim, place.stop - 1)
    FragmentReader(folder).verify()


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.full)])
def test_any_flipped_byte_of_any_file_is_refused(tmp_path: Path, stride: int) -> None:
    folder, values = make(tmp_path)
    for path in sorted(folder.iterdir()):
        for at in range(0, path.stat().st_size, stride):
            flipped(path, at)
            with pytest.raises(CheckpointError):
                FragmentReader(folder).verify()
            # What reads without verifying first never gets a wrong value.
            try:
                read = {name: FragmentReader(folder).tensor(name) for name in SHAPES}
            except CheckpointError:
                read = values
            assert all(torch.equal(read[name], value) for name, value in values.items())
            flipped(path, at)


@pytest.mark.parametrize("short", ["file", "header"])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, short: str) -> None:
    folder, _ = make(tmp_path)
    path = folder / "rank-1.safetensors"
    path.write_bytes(path.read_bytes()[: 4 if short == "header" else -1])
    with pytest.raises(CheckpointError, match=r"rank-1.* \(has \d+ bytes, not \d+\); it holds tensor '"):
        FragmentReader(folder).tensor("a.weight")


def test_a_manifest_that_lost_or_repeats_a_fragment_is_refused_with_the_tensor(tmp_path: Path) -> None:
    """Also when whoever changed it mended its own checksum."""
    folder, _ = make(tmp_path)
    manifest = read_manifest(folder)
    for broken in (manifest.fragments[1:], (manifest.fragments[0], *manifest.fragments)):
        damaged = dataclasses.replace(manifest, fragments=broken)
        (folder / "manifest.json").write_bytes(encode_manifest(damaged))
        with pytest.raises(CheckpointError, match=f"'{manifest.fragments[0].tensor}'"):
            FragmentReader(folder).verify()


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
    with pytest.raises(
        CheckpointError, match=r"format is 9, this version reads 2; use a checkpoint of this version\.$"
    ):
        read_manifest(folder)
    old = {"step": 1, "shapes": {}, "states": [], "fragments": [], "files": [], "meta": {}, "format": 1}
    (folder / "manifest.json").write_text(json.dumps(old))
    with pytest.raises(CheckpointError, match="format is 1, this version reads 2"):
        FragmentReader(folder)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_box_of_any_cut_reads_back_from_any_store(data: st.DataObject) -> None:
    """Uneven cuts along both dimensions, each part split unevenly again; read in boxes that fit none of them."""
    shape = (data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7)))
    value = torch.arange(float(math.prod(shape))).reshape(shape)

    def cuts(size: int) -> list[tuple[int, int]]:
        edges = sorted({0, size, *data.draw(st.sets(st.integers(0, size), max_size=2))})
        return list(pairwise(edges))

    store = open_store(f"memory://{uuid4().hex}")
    files, fragments = [], []
    for rank, box in enumerate(product(cuts(shape[0]), cuts(shape[1]))):
        flat = value[tuple(slice(*edge) for edge in box)].reshape(-1)
        for part, (low, high) in enumerate(cuts(flat.numel())):
            pieces = [Piece("w", low, {"weight": flat[low:high]}, box)]
            file, written = write_fragments(store, f"{rank}-{part}", pieces)
            files.append(file)
            fragments += written
    put_manifest(store, Manifest(1, {"w": shape}, ("weight",), tuple(fragments), tuple(files)))
    reader = FragmentReader(store)
    reader.verify()
    wanted = tuple(data.draw(st.sampled_from(cuts(size))) for size in shape)
    whole = value[tuple(slice(*edge) for edge in wanted)].reshape(-1)
    start = data.draw(st.integers(0, whole.numel() - 1))
    stop = data.draw(st.integers(start + 1, whole.numel()))
    assert torch.equal(reader.read("w", "weight", start, stop, wanted), whole[start:stop])


def test_a_long_range_is_written_in_parts_of_which_few_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasmo.model.fragment_writer.FRAGMENT_ELEMENTS", 10)
    value = torch.arange(95.0)
    file, fragments = write_file(tmp_path / "f", [("w", 5, {"weight": value[5:]}), ("w", 0, {"weight": value[:5]})])
    put_manifest(LocalStore(tmp_path), Manifest(1, {"w": (95,)}, ("weight",), fragments, (file,)))
    assert sorted(part.stop - part.start for part in fragments) == [5, *[10] * 9]
    reader = FragmentReader(tmp_path)
    assert torch.equal(reader.read("w", "weight", 12, 20), value[12:20])
    assert reader.bytes_read == 4 * 20
