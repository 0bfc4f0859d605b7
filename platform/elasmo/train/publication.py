"""Turns a run's checkpoint into a published model that serving loads as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasmo.config import LoraConfig, ModelConfig
from elasmo.model import lora
from elasmo.model.fragments import CheckpointError, read_manifest
from elasmo.model.imported_processor import load_processor
from elasmo.model.published import WEIGHTS
from elasmo.model.published import publish as write_published
from elasmo.model.stores import Store
from elasmo.train import retention
from elasmo.train.run_folder import checkpoint_root, read_summary

FOLDER = "published"


@dataclass(frozen=True)
class Publication:
    """What was published: the folder to serve, the step it holds, its hash."""

    folder: Path
    name: str
    step: int
    model_hash: str


def publish(run: Path, step: int | None = None, name: str | None = None) -> Publication:
    """Publishes the run's best checkpoint, or the one of `step`, into `<run>/published`; adapters are merged.

    Raises:
        CheckpointError: no such run or checkpoint, or a damaged one.
    """
    if not (run / "run.json").is_file():
        raise CheckpointError(f"{run} is not a run folder; name one under the config's train.storage, such as runs/….")
    summary = read_summary(run)
    chosen = _choose(run, step)
    with retention.reading(chosen):
        return _publish(run, summary, chosen, name)


def _publish(run: Path, summary: Mapping[str, Any], folder: Store, name: str | None) -> Publication:
    manifest = read_manifest(folder)
    config = ModelConfig.model_validate(manifest.meta["config"]["model"])
    processor = load_processor(run / "processor")
    if processor.fingerprint() != manifest.meta["processor_hash"]:
        raise CheckpointError(f"{run / 'processor'} is not the processor that {folder.url} was trained with.")
    source = {"run": summary["run"], "step": manifest.step, "gold": summary["gold"]["snapshot"]}
    name = name or summary["name"]
    adapters = manifest.meta["config"].get("train", {}).get("lora")
    weights: Path | Store = folder
    if adapters is not None:
        weights = lora.merge(folder, run / FOLDER / WEIGHTS, LoraConfig.model_validate(adapters))
    model_hash = write_published(run / FOLDER, name, config, processor, weights, source)
    return Publication(run / FOLDER, name, manifest.step, model_hash)


def export_adapters(run: Path, out: Path) -> Path:
    """Writes the LoRA adapters of a run's best checkpoint in PEFT's file layout; returns the weight file.

    Raises:
        CheckpointError: no such run or checkpoint, or it has no adapters.
    """
    if not (run / "run.json").is_file():
        raise CheckpointError(f"{run} is not a run folder; name one under the config's train.storage, such as runs/….")
    folder = _choose(run, None)
    config = read_manifest(folder).meta["config"]
    adapters = config.get("train", {}).get("lora")
    if adapters is None:
        raise CheckpointError(f"{run} was trained without train.lora; export the model without --adapters.")
    with retention.reading(folder):
        return lora.export(
            folder, out, LoraConfig.model_validate(adapters), ModelConfig.model_validate(config["model"])
        )


def _choose(run: Path, step: int | None) -> Store:
    committed = {retention.step_of(place.name): place for place in retention.committed(checkpoint_root(run))}
    if step is not None:
        if step not in committed:
            have = ", ".join(map(str, committed)) or "none"
            raise CheckpointError(f"{run} has no committed checkpoint of step {step}; it has {have}.")
        return committed[step]
    if not committed:
        raise CheckpointError(f"{run} has no committed checkpoint; train it to at least train.checkpoint_every steps.")
    best = retention.read_best(run)
    scored = retention.step_of(Path(best["path"]).name) if best is not None else None
    return committed.get(scored, committed[max(committed)]) if scored is not None else committed[max(committed)]
