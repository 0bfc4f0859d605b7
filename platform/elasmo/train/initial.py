"""Weights to start from: published models or checkpoints, each giving what it has, the rest stays random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from elasmo.model import published
from elasmo.model.fragments import MANIFEST, CheckpointError, FragmentReader
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.train import retention, run_folder


def load_initial(model: MultimodalDecoder, sources: Sequence[str]) -> list[str]:
    """Copies weights into a whole model, source after source; a later one overwrites.

    Args:
        sources: a published model's folder, a run's folder (its best checkpoint) or a checkpoint's folder.

    Returns:
        Names of the tensors that no source has.

    Raises:
        CheckpointError: a source is absent, damaged, or holds a tensor that the model lacks or has in another shape.
    """
    parameters = dict(model.named_parameters())
    left = set(parameters)
    for source in sources:
        reader = _open_fitting(model, source)
        with torch.no_grad(), retention.reading(reader.store):
            for name in reader.manifest.shapes:
                parameters[name].copy_(reader.tensor(name))
        left -= set(reader.manifest.shapes)
    return sorted(left)


def check_initial(model: MultimodalDecoder, sources: Sequence[str]) -> None:
    """What `load_initial` refuses, without reading a weight: the model may be one without values (on `meta`).

    Raises:
        CheckpointError: a source is absent, or holds a tensor that the model lacks or has in another shape.
    """
    for source in sources:
        _open_fitting(model, source)


def _open_fitting(model: MultimodalDecoder, source: str) -> FragmentReader:
    reader, parameters = _open(Path(source)), dict(model.named_parameters())
    for name, shape in reader.manifest.shapes.items():
        if name not in parameters:
            raise CheckpointError(
                f"train.init_from: {source} holds tensor {name!r}, which the model lacks; set its model config."
            )
        if shape != tuple(parameters[name].shape):
            raise CheckpointError(
                f"train.init_from: {source} has {name!r} in shape {shape}, the model needs "
                f"{tuple(parameters[name].shape)}; set its model config, or use data with its tokenizer."
            )
    return reader


def _open(folder: Path) -> FragmentReader:
    if (folder / "run.json").is_file():
        best = retention.read_best(folder)
        root = run_folder.checkpoint_root(folder)
        committed = retention.committed(root)
        if best is None and not committed:
            raise CheckpointError(f"train.init_from: run {folder} has no committed checkpoint.")
        return FragmentReader(root.child(Path(best["path"]).name) if best is not None else committed[-1])
    if (folder / published.WEIGHTS).is_dir() or (folder / published.PROCESSOR).is_dir():
        return published.describe(folder).reader
    if (folder / MANIFEST).is_file():
        return FragmentReader(folder)
    raise CheckpointError(
        f"train.init_from: {folder} is no published model, run or checkpoint; name a folder of `elasmo publish`, "
        "`elasmo import-hf` or a run."
    )
