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
from safetensors import safe_open
from torch import Tensor

from elasmo.config import ModelConfig
from elasmo.model import published
from elasmo.model.fragment_writer import commit, describe_file, with_sums
from elasmo.model.fragments import (
    MANIFEST,
    WEIGHT,
    Fragment,
    FragmentFile,
    FragmentReader,
    Manifest,
    fragment_key,
)
from elasmo.model.hugging_face_config import from_hugging_face
from elasmo.model.hugging_face_defaults import HuggingFaceError, Raw
from elasmo.model.hugging_face_folder import check_export_target, check_import_target, files_named, staged
from elasmo.model.hugging_face_names import Place, names
from elasmo.model.hugging_face_tensors import (
    HEAD,
    INDEX,
    WEIGHTS,
    Stored,
    has_head_of_its_own,
    list_tensors,
    match,
    read_json,
)
from elasmo.model.hugging_face_written_config import to_hugging_face
from elasmo.model.imported_processor import TOKENIZER, ImportedProcessor, image_settings
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import ProcessorError
from elasmo.model.published import KEPT, PROCESSOR
from elasmo.model.safetensors_stream import TensorSpec, write_safetensors

CONFIG = "config.json"
BESIDE = ("preprocessor_config.json", "processor_config.json", "generation_config.json")
UNUSED = "unused.safetensors"
"""Tensors of an imported model that ours leaves out, such as a vision tower's last layer."""


@dataclass(frozen=True)
class Import:
    """What was imported."""

    model_hash: str
    architecture: str
    parameters: int
    kept: tuple[str, ...]


def import_model(folder: Path, out: Path, name: str | None = None, replace: bool = False) -> Import:
    """Writes the Hugging Face model in `folder` as a published model into `out`.

    Weights keep their dtype and are copied one at a time. An earlier import of the same folder is replaced once the new
    one is whole.

    Args:
        name: of the model; the folder's when None.
        replace: whether `out` may hold the import of another folder.

    Raises:
        HuggingFaceError: an unknown architecture or setting, missing, unexpected or misshapen tensors, by name, a
            tokenizer that cannot be read, or something else in `out`.
    """
    with files_named():
        check_import_target(out, folder, replace)
        raw = read_json(folder / CONFIG)
        config, vocab_size = _read_config(folder, raw)
        stored = list_tensors(folder)
        if config.decoder.tie_embeddings and has_head_of_its_own(stored):
            untied = config.decoder.model_copy(update={"tie_embeddings": False})
            config = config.model_copy(update={"decoder": untied})
        architecture = str(raw["architectures"][0])
        try:
            shapes = full_shapes(config, vocab_size)
        except RuntimeError as error:  # sizes beyond what torch can count
            raise HuggingFaceError(f"{folder / CONFIG} has sizes that no model has: {error}") from None
        places, unused = match(folder, stored, names(config), shapes, architecture)
        processor = _read_processor(folder, config, vocab_size)
        source = {"hugging_face": architecture, "folder": str(folder.resolve())}
        with staged(out, (MANIFEST, published.WEIGHTS, KEPT, PROCESSOR)) as new:
            weights = _import_weights(new, stored, places, shapes)
            kept = _keep(folder, new / KEPT, stored, unused)
            model_hash = published.publish_imported(
                new, name or folder.resolve().name, config, processor, weights, kept, source
            )
    parameters = sum(torch.Size(shape).numel() for shape in shapes.values())
    return Import(model_hash, architecture, parameters, tuple(file.name for file in kept))


def export_model(folder: Path, out: Path, shard_bytes: int = 5 << 30) -> list[Path]:
    """Writes a published model for transformers into `out`, whole or not at all; returns the weight files.

    Args:
        shard_bytes: most bytes of a weight file.

    Raises:
        HuggingFaceError: the model has parts that no known architecture has, or `out` is not empty.
        PublishedError, CheckpointError: `folder` is no published model, or is damaged.
    """
    with files_named():
        check_export_target(out)
        description = published.describe(folder)
        config, reader = description.config, description.reader
        for file in description.kept:
            source = folder / KEPT / file.name
            if not source.is_file() or describe_file(source) != file:
                raise HuggingFaceError(f"{source} is missing or was changed since the import; import the model again.")
        kept_config = folder / KEPT / CONFIG
        if kept_config.is_file():
            raw = read_json(kept_config)
        else:
            raw = to_hugging_face(config, reader.manifest.shapes["embed_tokens.weight"][0])
        with staged(out) as new:
            for file in description.kept:
                if file.name not in (CONFIG, UNUSED):
                    shutil.copyfile(folder / KEPT / file.name, new / file.name)
            if not description.kept and description.processor is not None:
                description.processor.save_hugging_face(new)
            (new / CONFIG).write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n")
            with _open_unused(folder) as unused:
                files = _export_weights(reader, _exported_names(config), unused, new, shard_bytes)
    return [out / file for file in files]


def _read_config(folder: Path, raw: Raw) -> tuple[ModelConfig, int]:
    beside = {name: read_json(folder / name) if (folder / name).is_file() else {} for name in BESIDE}
    try:
        images = image_settings(beside["preprocessor_config.json"], beside["processor_config.json"])
        return from_hugging_face(raw, images, beside["generation_config.json"])
    except ProcessorError as error:
        raise HuggingFaceError(f"{folder}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise HuggingFaceError(f"{folder / CONFIG}: {where + ': ' if where else ''}{message}.") from None


def _exported_names(config: ModelConfig) -> dict[str, Place]:
    """Qwen2-Audio has no tied weights in transformers, so its output matrix is written even if it is the embedding."""
    table = names(config)
    if config.audio is not None and config.decoder.tie_embeddings:
        table[f"language_model.{HEAD}"] = Place("embed_tokens.weight")
    return table


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


def _import_weights(
    out: Path,
    stored: Mapping[str, Stored],
    places: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
) -> Path:
    """Fragment files, one for each weight file of theirs."""
    temporary = out / f".{published.WEIGHTS}"
    temporary.mkdir()
    fragments: list[Fragment] = []
    files: list[FragmentFile] = []
    by_path: dict[Path, list[str]] = {}
    for name in places:
        by_path.setdefault(stored[name].path, []).append(name)
    for path, chosen in sorted(by_path.items()):
        own, specs, sources = [], {}, {}
        for name in chosen:
            place, spec = places[name], stored[name].spec
            count = torch.Size(spec.shape).numel()
            fragment = Fragment(place.name, 0, count, path.name, place.box(shapes[place.name]))
            own.append(fragment)
            specs[fragment_key(fragment, WEIGHT)] = TensorSpec(spec.dtype, (count,))
            sources[fragment_key(fragment, WEIGHT)] = stored[name].name
        with safe_open(str(path), framework="pt") as weights:
            written = write_safetensors(temporary / path.name, specs, partial(_flat, weights, sources), {})
        fragments += [with_sums(fragment, (WEIGHT,), specs, written.crc32) for fragment in own]
        files.append(FragmentFile(path.name, written.bytes, written.sha256))
    commit(temporary, out / published.WEIGHTS, Manifest(0, shapes, (WEIGHT,), tuple(fragments), tuple(files)))
    return out / published.WEIGHTS


def _flat(weights: Any, sources: Mapping[str, str], key: str) -> Tensor:
    tensor: Tensor = weights.get_tensor(sources[key])
    return tensor.reshape(-1)


def _keep(folder: Path, kept: Path, stored: Mapping[str, Stored], unused: list[str]) -> list[FragmentFile]:
    """Copies every file but the weights, and puts tensors without a place into one file."""
    kept.mkdir()
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
) -> list[str]:
    extra = {} if unused is None else {name: unused.get_slice(name) for name in unused.keys()}  # noqa: SIM118
    specs: dict[str, TensorSpec] = {}
    for name, place in table.items():
        shape = reader.manifest.shapes[place.name]
        specs[name] = TensorSpec(reader.dtype(place.name), shape if place.expert is None else shape[1:])
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
    files = []
    for number, shard in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(out / file, {name: specs[name] for name in shard}, value, {"format": "pt"})
        files.append(file)
    if len(shards) > 1:
        weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        total = sum(spec.bytes for spec in specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return files


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
