"""The tensors of a Hugging Face folder: what its weight files hold, and which of them have a place in our model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from elasmo.model.hugging_face_defaults import HuggingFaceError
from elasmo.model.hugging_face_names import Place, canonical
from elasmo.model.safetensors_stream import DTYPES, TensorSpec

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"
_EMBEDDINGS = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight")
_FLOATS = ("F64", "F32", "F16", "BF16")
_UNUSED = re.compile(
    r".*rotary_emb\.inv_freq|vision_tower\.vision_model\.(encoder\.layers\.\d+|post_layernorm|head)\..*"
    r"|vision_tower\.vision_model\.embeddings\.position_ids"
)
"""Stored rotary tables and position numbers, and what lies behind the vision layer that is used."""
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Stored:
    """One tensor of a Hugging Face folder: its file, its name there, and what it is."""

    path: Path
    name: str
    spec: TensorSpec


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        HuggingFaceError: the file is missing, or no JSON object.
    """
    if not path.is_file():
        raise HuggingFaceError(f"{path} is missing; name a folder that `save_pretrained` or the hub made.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HuggingFaceError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise HuggingFaceError(f"{path} is not JSON of settings by name, but a {type(content).__name__}.")
    return content


def list_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder by canonical name, from one file or from those that the index names.

    Raises:
        HuggingFaceError: a file is missing or damaged, or holds one tensor under two names.
    """
    indexed = (folder / INDEX).is_file()
    found: dict[str, Stored] = {}
    for file in _indexed_files(folder / INDEX) if indexed else [WEIGHTS]:
        path = folder / file
        if not path.is_file():
            hint = f"{INDEX} names it" if indexed else "only safetensors weights are read"
            raise HuggingFaceError(f"{path} is missing; {hint}.")
        try:
            with safe_open(str(path), framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a dict)
                    part = weights.get_slice(name)
                    item = Stored(path, name, TensorSpec(part.get_dtype(), tuple(part.get_shape())))
                    if (other := found.setdefault(canonical(name), item)) is not item:
                        raise HuggingFaceError(f"{folder} holds one tensor twice, as {other.name!r} and as {name!r}.")
        except SafetensorError as error:
            raise HuggingFaceError(f"{path} is not a safetensors file: {error}.") from None
    return found


def _indexed_files(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise HuggingFaceError(f"{index} lacks weight_map, a file name for each tensor; download it again.")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise HuggingFaceError(f"{index}: weight_map has {file!r} for {name!r}; it must name a file of the folder.")
    return sorted(set(weight_map.values()))


def has_head_of_its_own(stored: Mapping[str, Stored]) -> bool:
    """Whether the output matrix differs from the embedding: then these are not tied, whatever the config says."""
    head = stored.get(HEAD)
    embedding = next((stored[name] for name in _EMBEDDINGS if name in stored), None)
    if head is None or embedding is None:
        return False
    if head.spec.shape != embedding.spec.shape or len(head.spec.shape) != 2:
        return True
    with safe_open(str(head.path), framework="pt") as one, safe_open(str(embedding.path), framework="pt") as other:
        a, b = one.get_slice(head.name), other.get_slice(embedding.name)
        for row in range(0, head.spec.shape[0], _BLOCK_ROWS):
            if not torch.equal(a[row : row + _BLOCK_ROWS].float(), b[row : row + _BLOCK_ROWS].float()):
                return True
    return False


def match(
    folder: Path,
    stored: Mapping[str, Stored],
    table: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
    architecture: str,
) -> tuple[dict[str, Place], list[str]]:
    """Where each stored tensor goes, and the names of those that go nowhere but may be there.

    Raises:
        HuggingFaceError: names a tensor that is missing, has no place, or has another shape or dtype than it must.
    """
    wanted = {canonical(name): place for name, place in table.items()}
    missing = sorted(set(wanted) - set(stored))
    if missing:
        raise HuggingFaceError(f"{folder} lacks tensor {missing[0]!r} ({len(missing)} in all); it is incomplete.")
    unused = sorted(set(stored) - set(wanted))
    strange = [name for name in unused if name != HEAD and not _UNUSED.fullmatch(name)]
    if strange:
        raise HuggingFaceError(
            f"{folder} holds tensor {strange[0]!r} ({len(strange)} in all), for which {architecture} has no place here."
        )
    for name, item in stored.items():
        if item.spec.dtype not in (_FLOATS if name in wanted else DTYPES):
            raise HuggingFaceError(
                f"{item.path}: {item.name!r} is {item.spec.dtype}; weights must be {', '.join(_FLOATS)}, so import the "
                "model before its quantisation."
            )
    for name, place in wanted.items():
        full = shapes[place.name]
        expected = full if place.expert is None else full[1:]
        if stored[name].spec.shape != expected:
            raise HuggingFaceError(
                f"{stored[name].path}: {stored[name].name!r} has shape {stored[name].spec.shape}, the config says "
                f"{expected}."
            )
    return wanted, unused
