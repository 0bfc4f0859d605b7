"""Turns a run's checkpoint into a published model that serving loads as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elasmo.config import LoraConfig, ModelConfig
from elasmo.model import lora
from elasmo.model.fragments import MANIFEST, CheckpointError, read_manifest
from elasmo.model.imported_processor import load_processor
from elasmo.model.published import WEIGHTS
from elasmo.model.published import publish as write_published
from elasmo.train import checkpoint
from elasmo.train.run_folder import read_summary

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
    folder = _choose(run, step)
    manifest = read_manifest(folder)
    config = ModelConfig.model_validate(manifest.meta["config"]["model"])
    processor = load_processor(run / "processor")
    if processor.fingerprint() != manifest.meta["processor_hash"]:
        raise CheckpointError(f"{run / 'processor'} is not the processor that {folder} was trained with.")
    source = {"run": summary["run"], "step": manifest.step, "gold": summary["gold"]["snapshot"]}
    name = name or summary["name"]
    adapters = manifest.meta["config"].get("train", {}).get("lora")
    if adapters is not None:
        folder = lora.merge(folder, run / FOLDER / WEIGHTS, LoraConfig.model_validate(adapters))
    model_hash = write_published(run / FOLDER, name, config, processor, folder, source)
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
    return lora.export(folder, out, LoraConfig.model_validate(adapters), ModelConfig.model_validate(config["model"]))


def _choose(run: Path, step: int | None) -> Path:
    root = run / "checkpoints"
    if step is not None:
        folder = root / checkpoint.folder_name(step)
        if not (folder / MANIFEST).is_file():
            have = ", ".join(str(int(path.name.removeprefix("step-"))) for path in checkpoint.committed(root)) or "none"
            raise CheckpointError(f"{run} has no committed checkpoint of step {step}; it has {have}.")
        return folder
    best = checkpoint.read_best(run)
    if best is not None and (run / best["path"] / MANIFEST).is_file():
        return run / str(best["path"])
    folders = checkpoint.committed(root)
    if not folders:
        raise CheckpointError(f"{run} has no committed checkpoint; train it to at least train.checkpoint_every steps.")
    return folders[-1]
