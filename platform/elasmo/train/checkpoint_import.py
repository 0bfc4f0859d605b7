"""Brings a DeepSpeed checkpoint into a run of ours: weights, moments and step, so that training goes on where it was.

A file of theirs becomes a file of fragments; names are ours, or those that transformers gives the same model. What
their checkpoint does not say, where the data stands, the configuration says: at the plan's step of the same number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from elasmo.config import Config
from elasmo.data.gold_mixture import GoldMixture
from elasmo.data.stream import open_gold
from elasmo.model import lora
from elasmo.model.boxes import Box
from elasmo.model.fragment_writer import put_manifest, write_fragments
from elasmo.model.fragments import WEIGHT, CheckpointError, Fragment, FragmentFile, Manifest
from elasmo.model.hugging_face_names import canonical, names
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.stores import Store, open_store
from elasmo.train import run_folder
from elasmo.train.cursor import cursor
from elasmo.train.deepspeed_checkpoint import MOMENTS, DeepSpeedCheckpoint, open_checkpoint
from elasmo.train.preflight import preflight
from elasmo.train.randomness import RULE
from elasmo.train.retention import folder_name
from elasmo.train.run_folder import pinned


@dataclass(frozen=True)
class Imported:
    """A run that can be taken up at what was imported."""

    run_id: str
    folder: Path
    manifest: Manifest


def import_run(folder: Path, config: Config, tag: str | None = None, trust: bool = False) -> Imported:
    """Makes a new run of a configuration whose first checkpoint is DeepSpeed's.

    Args:
        folder: what was passed to DeepSpeed's `save_checkpoint`.

    Raises:
        CheckpointError: their checkpoint is absent, damaged, of a model-parallel run, or of another model.
        GoldError, ConfigError, LayoutError, LoraError, FreezeError: see `preflight`.
    """
    gold = open_gold(config)
    config = pinned(config, gold)
    preflight(config, gold, None)
    source = open_checkpoint(folder, tag, trust)
    shapes = model_shapes(config, gold)
    places = places_in(source.shapes, shapes, config)
    run_id = run_folder.new_run_id(config)
    run = run_folder.create(config, run_id, gold)
    root = run_folder.checkpoint_root(run)
    return Imported(run_id, run, import_checkpoint(source, root, shapes, places, resume_state(config, gold, source)))


Place = tuple[str, Box | None]
"""One of our tensors, and the box of it that a tensor of theirs is; None for all of it."""


def import_checkpoint(
    source: DeepSpeedCheckpoint,
    root: str | Path | Store,
    shapes: Mapping[str, tuple[int, ...]],
    places: Mapping[str, Place],
    meta: Mapping[str, Any],
) -> Manifest:
    """Writes and commits a checkpoint of ours under `root`.

    Args:
        shapes: of all tensors of our model.
        places: where each of their tensors goes.
        meta: what training resumes with; `optimizer_step` is added.

    Raises:
        CheckpointError: their files are damaged, or do not hold every tensor of ours exactly once.
    """
    place = open_store(root).child(folder_name(source.steps))
    files: list[FragmentFile] = []
    fragments: list[Fragment] = []
    steps = set()
    for rank in range(len(source.optimizers)):
        parts, step = source.rank(rank)
        steps.add(step)
        ours = (replace(part, tensor=places[part.tensor][0], box=places[part.tensor][1]) for part in parts)
        file, written = write_fragments(place, f"imported-{rank:05d}.safetensors", ours)
        files.append(file)
        fragments += written
    if len(steps) > 1:
        raise CheckpointError(f"{source.folder}: its ranks stopped at different optimizer steps {sorted(steps)}.")
    manifest = Manifest(
        step=source.steps,
        shapes=shapes,
        states=(WEIGHT, *MOMENTS),
        fragments=tuple(fragments),
        files=tuple(files),
        meta={**meta, "optimizer_step": next(iter(steps))},
    )
    put_manifest(place, manifest)
    return manifest


def places_in(
    source: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]], config: Config | None = None
) -> dict[str, Place]:
    """Where each of their tensors goes: the one of ours with its name, or with its name in transformers.

    Raises:
        CheckpointError: a tensor has no place, another shape, or one of ours is missing.
    """
    table = names(config.model) if config is not None else {}
    places: dict[str, Place] = {}
    for theirs, shape in source.items():
        name = theirs.removeprefix("module.")
        known = table.get(name) or table.get(canonical(name))
        if name in shapes:
            places[theirs] = (name, None)
        elif known is not None:
            places[theirs] = (known.name, known.box(shapes[known.name]))
        else:
            raise CheckpointError(
                f"The DeepSpeed checkpoint has tensor {theirs!r}, which the model lacks; set its model config."
            )
        ours, box = places[theirs]
        wanted = shapes[ours] if box is None else tuple(high - low for low, high in box)
        if math.prod(wanted) != math.prod(shape) or (box is None and wanted != shape):
            raise CheckpointError(
                f"The DeepSpeed checkpoint has {theirs!r} in shape {shape}, the model needs {wanted}; set its config."
            )
    missing = sorted(set(shapes) - {name for name, _ in places.values()})
    if missing:
        raise CheckpointError(f"The DeepSpeed checkpoint lacks tensor {missing[0]!r}; set the config of its model.")
    return places


def model_shapes(config: Config, gold: GoldMixture) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a run of this configuration trains or keeps, without building it."""
    processor = gold.processor()
    with torch.device("meta"):
        model = MultimodalDecoder(config.model, processor.vocab_size, processor.table_fields)
        if config.train.lora is not None:
            lora.add_adapters(model, config.train.lora, config.seed)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def resume_state(config: Config, gold: GoldMixture, source: DeepSpeedCheckpoint) -> dict[str, Any]:
    """What a run of this configuration resumes with after as many steps of its plan as the checkpoint has."""
    return {
        "cursor": cursor(config, gold, source.steps),
        "randomness": RULE,
        "config": config.model_dump(mode="json"),
        "processor_hash": gold.processor().fingerprint(),
        "versions": run_folder.versions(),
        "imported": {"deepspeed": source.version, "zero_stage": source.stage, "folder": str(source.folder.resolve())},
    }
