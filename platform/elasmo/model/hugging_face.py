"""Imports Hugging Face checkpoints as published models and exports ours for transformers, one tensor at a time.

Import keeps every other file of the folder (tokenizer, processor, chat template), and tensors that our model does not
use, so that an export gives back what came in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elasmo.config import ModelConfig
from elasmo.model import published
from elasmo.model.fragments import (
    WEIGHT,
    Fragment,
    FragmentFile,
    FragmentReader,
    Manifest,
    commit,
    describe_file,
    fragment_key,
)
from elasmo.model.hugging_face_config import HuggingFaceError, from_hugging_face, to_hugging_face
from elasmo.model.hugging_face_names import Place, canonical, names
from elasmo.model.imported_processor import TOKENIZER, ImportedProcessor, image_settings
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import ProcessorError
from elasmo.model.published import KEPT
from elasmo.model.safetensors_stream import TensorSpec, write_safetensors

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
BESIDE = ("preprocessor_config.json", "processor_config.json", "generation_config.json")
UNUSED = "unused.safetensors"
"""Tensors of an imported model that ours leaves out, such as a vision tower's last layer."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a Hugging Face folder: its file, its name there, and what it is."""

    path: Path
    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class Import:
    """What was imported."""

    model_hash: str
    architecture: str
    parameters: int
    kept: tuple[str, ...]


def import_model(folder: Path, out: Path, name: str | None = None) -> Import:
    """Writes the Hugging Face model in `folder` as a published model into `out`.

    Weights keep their dtype and are copied one at a time.

    Raises:
        HuggingFaceError: an unknown architecture or setting, missing, unexpected or misshapen tensors, by name, or a
            tokenizer that cannot be read.
    """
    raw = _read_json(folder / CONFIG)
    beside = {name: _read_json(folder / name) if (folder / name).is_file() else {} for name in BESIDE}
    images = image_settings(beside["preprocessor_config.json"], beside["processor_config.json"])
    try:
        config, vocab_size = from_hugging_face(raw, images, beside["generation_config.json"])
    except (KeyError, TypeError) as error:
        raise HuggingFaceError(f"{folder / CONFIG} lacks or misspells {error}; it describes no model.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise HuggingFaceError(f"{folder / CONFIG}: {field}: {first['msg']}.") from None
    shapes = full_shapes(config, vocab_size)
    stored = _list_tensors(folder)
    places, unused = _match(folder, stored, names(config), shapes, raw)
    processor = _read_processor(folder, config, vocab_size)
    weights = _import_weights(out, stored, places, shapes)
    kept = _keep(folder, out / KEPT, stored, unused)
    source = {"hugging_face": str(raw["architectures"][0])}
    name = name or folder.resolve().name
    model_hash = published.publish_imported(out, name, config, processor, weights, kept, source)
    parameters = sum(torch.Size(shape).numel() for shape in shapes.values())
    return Import(model_hash, str(raw["architectures"][0]), parameters, tuple(file.name for file in kept))


def export_model(folder: Path, out: Path, shard_bytes: int = 5 << 30) -> list[Path]:
    """Writes a published model for transformers into `out`; returns the weight files.

    Args:
        shard_bytes: most bytes of a weight file.

    Raises:
        HuggingFaceError: the model has parts that no known architecture has, or `out` is not empty.
        PublishedError, CheckpointError: `folder` is no published model, or is damaged.
    """
    if out.exists() and any(out.iterdir()):
        raise HuggingFaceError(f"{out} is not empty; name a new folder.")
    description = published.describe(folder)
    config, reader = description.config, description.reader
    raw = to_hugging_face(config, reader.manifest.shapes["embed_tokens.weight"][0])
    out.mkdir(parents=True, exist_ok=True)
    for file in description.kept:
        source = folder / KEPT / file.name
        if not source.is_file() or describe_file(source) != file:
            raise HuggingFaceError(f"{source} is missing or was changed since the import; import the model again.")
        if file.name not in (CONFIG, UNUSED):
            shutil.copyfile(source, out / file.name)
    if not description.kept and description.processor is not None:
        description.processor.save_hugging_face(out)
    kept_config = folder / KEPT / CONFIG
    if kept_config.is_file():
        raw = _read_json(kept_config)
    (out / CONFIG).write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")
    with _open_unused(folder) as unused:
        return _export_weights(reader, names(config), unused, out, shard_bytes)


def _read_processor(folder: Path, config: ModelConfig, vocab_size: int) -> ImportedProcessor | None:
    if not (folder / TOKENIZER).is_file():
        return None
    try:
        return ImportedProcessor(folder, config, vocab_size)
    except ProcessorError as error:
        raise HuggingFaceError(str(error)) from None


def full_shapes(config: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model, without building it."""
    with torch.device("meta"):
        model = MultimodalDecoder(config, vocab_size)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise HuggingFaceError(f"{path} is missing; name a folder that `save_pretrained` or the hub made.")
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise HuggingFaceError(f"{path} is not JSON: {error}.") from None


def _list_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder by canonical name, from one file or from those that the index names."""
    indexed = (folder / INDEX).is_file()
    files = sorted(set(_read_json(folder / INDEX)["weight_map"].values())) if indexed else [WEIGHTS]
    found: dict[str, Stored] = {}
    for file in files:
        path = folder / file
        if not path.is_file():
            hint = f"{INDEX} names it" if indexed else "only safetensors weights are read"
            raise HuggingFaceError(f"{path} is missing; {hint}.")
        try:
            with safe_open(str(path), framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a dict)
                    part = weights.get_slice(name)
                    found[canonical(name)] = Stored(path, name, TensorSpec(part.get_dtype(), tuple(part.get_shape())))
        except SafetensorError as error:
            raise HuggingFaceError(f"{path} is not a safetensors file: {error}.") from None
    return found


def _match(
    folder: Path,
    stored: Mapping[str, Stored],
    table: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
    raw: Mapping[str, Any],
) -> tuple[dict[str, Place], list[str]]:
    """Where each stored tensor goes, and the names of those that go nowhere but may be there."""
    wanted = {canonical(name): place for name, place in table.items()}
    missing = sorted(set(wanted) - set(stored))
    if missing:
        raise HuggingFaceError(f"{folder} lacks tensor {missing[0]!r} ({len(missing)} in all); it is incomplete.")
    unused = sorted(set(stored) - set(wanted))
    strange = [name for name in unused if not _may_be_unused(name, raw)]
    if strange:
        raise HuggingFaceError(
            f"{folder} holds tensor {strange[0]!r} ({len(strange)} in all), for which {raw['architectures'][0]} has no "
            "place here."
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


def _may_be_unused(name: str, raw: Mapping[str, Any]) -> bool:
    """Tied heads, stored rotary tables, and what lies behind the vision layer that is used."""
    text = raw.get("text_config", raw)
    tied = text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))
    if name.endswith("lm_head.weight"):
        return bool(tied)
    return name.endswith("rotary_emb.inv_freq") or name.startswith("vision_tower.")


def _import_weights(
    out: Path,
    stored: Mapping[str, Stored],
    places: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
) -> Path:
    """Fragment files, one for each weight file of theirs."""
    temporary = out / f".{published.WEIGHTS}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    fragments: list[Fragment] = []
    files: list[FragmentFile] = []
    by_path: dict[Path, list[str]] = {}
    for name in places:
        by_path.setdefault(stored[name].path, []).append(name)
    for path, chosen in sorted(by_path.items()):
        specs, sources = {}, {}
        for name in chosen:
            place, spec = places[name], stored[name].spec
            count = torch.Size(spec.shape).numel()
            fragment = Fragment(place.name, 0, count, path.name, place.box(shapes[place.name]))
            fragments.append(fragment)
            specs[fragment_key(fragment, WEIGHT)] = TensorSpec(spec.dtype, (count,))
            sources[fragment_key(fragment, WEIGHT)] = stored[name].name
        with safe_open(str(path), framework="pt") as weights:
            write_safetensors(temporary / path.name, specs, partial(_flat, weights, sources), {})
        files.append(describe_file(temporary / path.name))
    commit(temporary, out / published.WEIGHTS, Manifest(0, shapes, (WEIGHT,), tuple(fragments), tuple(files)))
    return out / published.WEIGHTS


def _flat(weights: Any, sources: Mapping[str, str], key: str) -> Tensor:
    tensor: Tensor = weights.get_tensor(sources[key])
    return tensor.reshape(-1)


def _keep(folder: Path, kept: Path, stored: Mapping[str, Stored], unused: list[str]) -> list[FragmentFile]:
    """Copies every file but the weights, and puts tensors without a place into one file."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    weights = {item.path.name for item in stored.values()} | {INDEX}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in weights and path.suffix not in (".bin", ".pt", ".safetensors"):
            shutil.copyfile(path, kept / path.name)
    if unused:
        sources = {stored[name].name: stored[name] for name in unused}

        def value(name: str) -> Tensor:
            with safe_open(str(sources[name].path), framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
                return tensor

        write_safetensors(kept / UNUSED, {name: item.spec for name, item in sources.items()}, value, {})
    return [describe_file(path) for path in sorted(kept.iterdir())]


@contextmanager
def _open_unused(folder: Path) -> Iterator[Any]:
    path = folder / KEPT / UNUSED
    if not path.is_file():
        yield None
        return
    with safe_open(str(path), framework="pt") as file:
        yield file


def _export_weights(
    reader: FragmentReader, table: Mapping[str, Place], unused: Any, out: Path, shard_bytes: int
) -> list[Path]:
    specs: dict[str, TensorSpec] = {}
    for name, place in table.items():
        shape = reader.manifest.shapes[place.name]
        specs[name] = TensorSpec(reader.dtype(place.name), shape if place.expert is None else shape[1:])
    extra = {} if unused is None else {name: unused.get_slice(name) for name in unused.keys()}  # noqa: SIM118
    specs |= {name: TensorSpec(part.get_dtype(), tuple(part.get_shape())) for name, part in extra.items()}

    def value(name: str) -> Tensor:
        if name in extra:
            tensor: Tensor = unused.get_tensor(name)
            return tensor
        place = table[name]
        shape = reader.manifest.shapes[place.name]
        box = place.box(shape)
        count = torch.Size(specs[name].shape).numel()
        return reader.read(place.name, WEIGHT, 0, count, box, as_stored=True).view(specs[name].shape)

    shards = _shards(specs, shard_bytes)
    paths = []
    for number, shard in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(out / file, {name: specs[name] for name in shard}, value, {"format": "pt"})
        paths.append(out / file)
    if len(shards) > 1:
        weight_map = {name: path.name for path, shard in zip(paths, shards, strict=True) for name in shard}
        total = sum(spec.bytes for spec in specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return paths


def _shards(specs: Mapping[str, TensorSpec], limit: int) -> list[list[str]]:
    """Names in order, cut where a file would exceed the limit; a larger tensor has a file of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, spec in specs.items():
        if shards[-1] and filled + spec.bytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += spec.bytes
    return shards
