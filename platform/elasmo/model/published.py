"""A published model: one manifest beside the very fragment files that training wrote, loaded without a conversion step.

The manifest carries every hash. Weights, configuration or processor that differ from it are refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from elasmo.config import ModelConfig
from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import (
    MANIFEST,
    WEIGHT,
    CheckpointError,
    FragmentFile,
    FragmentReader,
    Manifest,
    parse_manifest,
    read_manifest,
)
from elasmo.model.imported_processor import AnyProcessor, load_processor
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import ProcessorError
from elasmo.model.stores import LocalStore, Store

FORMAT = 1
PROCESSOR = "processor"
KEPT = "hugging_face"
"""Folder of an imported model's own files: configuration, tokenizer, processor, chat template."""
UNREADABLE = (
    "The model {name!r} was imported without tokenizer.json, so it reads no text; save its tokenizer in that format "
    "(transformers' AutoTokenizer and save_pretrained do) and import it again."
)
WEIGHTS = "weights"


class PublishedError(ValueError):
    """A published model that cannot be served, with the file or tensor that is at fault."""


@dataclass(frozen=True)
class Published:
    """A verified model, ready to serve.

    Attributes:
        model: on the CPU, in evaluation mode, float32.
        processor: None for a model that was imported without a tokenizer.
        model_hash: of configuration, processor and weights; KV caches of another hash are refused.
    """

    name: str
    model: MultimodalDecoder
    processor: AnyProcessor | None
    manifest: Mapping[str, Any]
    model_hash: str

    def own_processor(self) -> AnyProcessor:
        """The processor.

        Raises:
            PublishedError: the model was imported without one.
        """
        if self.processor is None:
            raise PublishedError(UNREADABLE.format(name=self.name))
        return self.processor


def publish(
    path: Path,
    name: str,
    config: ModelConfig,
    processor: AnyProcessor,
    checkpoint: str | Path | Store,
    source: Mapping[str, Any],
) -> str:
    """Writes `path` for the weights in `checkpoint`, which stay where they are.

    Args:
        path: folder to write; an earlier publication there is replaced.
        name: what clients ask for.
        checkpoint: a committed checkpoint, in a folder or any other store; every file is verified first.
        source: where the weights come from, kept as it is.

    Returns:
        The model hash.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    reader = FragmentReader(checkpoint)
    reader.verify()
    path.mkdir(parents=True, exist_ok=True)
    processor.save(path / PROCESSOR)
    weights = _without_meta(reader.manifest)
    manifest = {
        "format": FORMAT,
        "name": name,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": config.model_dump(mode="json"),
        "processor_hash": processor.fingerprint(),
        "weights": {"folder": _place(reader.store, path), "manifest": weights},
        "model_hash": _hash(config.model_dump(mode="json"), processor, weights),
        "source": dict(source),
    }
    _write_manifest(path, manifest)
    return str(manifest["model_hash"])


def publish_imported(
    path: Path,
    name: str,
    config: ModelConfig,
    processor: AnyProcessor | None,
    weights: Path,
    kept: Sequence[FragmentFile],
    source: Mapping[str, Any],
) -> str:
    """Writes `path` for an imported model, whose own files lie in its folder `KEPT`. Returns the model hash."""
    shutil.rmtree(path / PROCESSOR, ignore_errors=True)
    if processor is not None:
        processor.save(path / PROCESSOR)
    described = _without_meta(read_manifest(weights))
    manifest = {
        "format": FORMAT,
        "name": name,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "model": config.model_dump(mode="json"),
        "processor_hash": None if processor is None else processor.fingerprint(),
        "kept": [asdict(file) for file in kept],
        "weights": {"folder": os.path.relpath(weights, path), "manifest": described},
        "model_hash": _hash(config.model_dump(mode="json"), processor, described),
        "source": dict(source),
    }
    _write_manifest(path, manifest)
    return str(manifest["model_hash"])


def write(path: Path, name: str, model: MultimodalDecoder, processor: AnyProcessor, source: Mapping[str, Any]) -> str:
    """Publishes a model that is in memory: its weights go into `path` as well. Returns the model hash."""
    temporary = path / f".{WEIGHTS}"
    temporary.mkdir(parents=True, exist_ok=True)
    parameters = dict(model.named_parameters())
    file, fragments = write_file(
        temporary / "model.safetensors",
        ((key, 0, {WEIGHT: value.detach().float().view(-1)}) for key, value in parameters.items()),
    )
    shapes = {key: tuple(value.shape) for key, value in parameters.items()}
    commit(temporary, path / WEIGHTS, Manifest(0, shapes, (WEIGHT,), fragments, (file,)))
    return publish(path, name, model.config, processor, path / WEIGHTS, source)


def verify(path: str | Path) -> None:
    """Checks every file of a published model against its manifest, without building the model.

    Raises:
        PublishedError: names the file, field or tensor that is missing or differs.
    """
    folder = Path(path)
    manifest, _, _, weights = _read(folder)
    try:
        FragmentReader(_weights(folder, manifest), weights).verify()
    except CheckpointError as error:
        raise PublishedError(str(error)) from None


@dataclass(frozen=True)
class Description:
    """A published model without its weights in memory.

    Attributes:
        reader: of its weights.
        processor: None for a model that was imported without a tokenizer.
        kept: files of an imported model, in its folder `KEPT`.
    """

    config: ModelConfig
    processor: AnyProcessor | None
    reader: FragmentReader
    kept: tuple[FragmentFile, ...]


def describe(path: str | Path) -> Description:
    """Opens a published model to read its tensors one by one.

    Raises:
        PublishedError: names the file or field that is missing or differs.
    """
    folder = Path(path)
    manifest, config, processor, weights = _read(folder)
    try:
        kept = tuple(FragmentFile(**file) for file in manifest.get("kept", ()))
        if any(Path(file.name).name != file.name for file in kept):
            raise ValueError("kept names a file outside the folder")
    except (TypeError, ValueError) as error:
        raise PublishedError(f"{folder / MANIFEST} is not a manifest of `elasmo import-hf`: {error}.") from None
    return Description(config, processor, FragmentReader(_weights(folder, manifest), weights), kept)


def load(path: str | Path) -> Published:
    """Reads and verifies a published model.

    Raises:
        PublishedError: names the file, field or tensor that is missing or differs.
    """
    folder = Path(path)
    manifest, config, processor, weights = _read(folder)
    vocab_size = weights.shapes["embed_tokens.weight"][0]
    model = MultimodalDecoder(config, vocab_size, processor.table_fields if processor is not None else ())
    _load_weights(model, _weights(folder, manifest), weights)
    return Published(manifest["name"], model.eval(), processor, manifest, manifest["model_hash"])


def _place(weights: Store, path: Path) -> str:
    """What a published model calls its weights: the way from its folder, or the URL of a store elsewhere."""
    return os.path.relpath(weights.path, path) if isinstance(weights, LocalStore) else weights.url


def _weights(folder: Path, manifest: Mapping[str, Any]) -> str | Path:
    place = str(manifest["weights"]["folder"])
    return place if "://" in place else folder / place


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    partial = path / f".{MANIFEST}"
    partial.write_text(json.dumps(manifest, indent=1, sort_keys=True))
    partial.rename(path / MANIFEST)


def _read(folder: Path) -> tuple[dict[str, Any], ModelConfig, AnyProcessor | None, Manifest]:
    if not (folder / MANIFEST).is_file():
        raise PublishedError(f"{folder} holds no published model; write one with `elasmo publish RUN`.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise PublishedError(f"{folder} has format {manifest['format']}; this version reads {FORMAT}.")
        config = ModelConfig.model_validate(manifest["model"])
        weights = parse_manifest({**manifest["weights"]["manifest"], "meta": {}})
    except PublishedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PublishedError(f"{folder / MANIFEST} is not a manifest of `elasmo publish`: {error}.") from None
    processor = _read_processor(folder, manifest)
    if _hash(manifest["model"], processor, manifest["weights"]["manifest"]) != manifest["model_hash"]:
        raise PublishedError(f"{folder / MANIFEST} was altered: model_hash does not fit; publish the model again.")
    return manifest, config, processor, weights


def _read_processor(folder: Path, manifest: Mapping[str, Any]) -> AnyProcessor | None:
    if manifest["processor_hash"] is None:
        return None
    try:
        processor = load_processor(folder / PROCESSOR)
    except ProcessorError as error:
        raise PublishedError(f"{error} Publish the model again.") from None
    if processor.fingerprint() != manifest["processor_hash"]:
        raise PublishedError(f"{folder / PROCESSOR} differs from the manifest; publish the model again.")
    return processor


def _load_weights(model: MultimodalDecoder, folder: str | Path, weights: Manifest) -> None:
    reader = FragmentReader(folder, weights)
    try:
        reader.verify()  # by SHA-256, for which the model hash vouches
    except CheckpointError as error:
        raise PublishedError(str(error)) from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            try:
                values = reader.tensor(name)
            except CheckpointError as error:
                raise PublishedError(str(error)) from None
            if values.shape != parameter.shape:
                raise PublishedError(
                    f"{folder}: tensor {name!r} has shape {tuple(values.shape)}, not {tuple(parameter.shape)}."
                )
            parameter.copy_(values)


def _without_meta(manifest: Manifest) -> dict[str, Any]:
    described = asdict(manifest)
    del described["meta"]
    # Through JSON, so that the hash of what was written equals the hash of what is read.
    return dict(json.loads(json.dumps(described)))


def _hash(model: Mapping[str, Any], processor: AnyProcessor | None, weights: Mapping[str, Any]) -> str:
    # The model as it was written: a setting that a later version adds changes no hash.
    processed = None if processor is None else processor.fingerprint()
    parts = [model, processed, weights["shapes"], weights["files"]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
