"""Reads what `engine.save_checkpoint` of a data-parallel DeepSpeed run wrote: ZeRO 1, 2 or 3, in any number of ranks.

Every rank's file becomes fragments of full tensors as it lies there; nothing is put together, so memory for the largest
file is enough. Written for the layout of DeepSpeed 0.19; its own loading code is the oracle of the test.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import WEIGHT, CheckpointError

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """A checkpoint's folder and what all its ranks share.

    Attributes:
        steps: training steps that are in it.
        groups: shapes of the trained parameters, in the order of each flat buffer.
        frozen: shapes of the parameters that are not trained.
        paddings: elements behind each parameter in its flat buffer.
    """

    folder: Path
    stage: int
    steps: int
    version: str
    groups: tuple[Mapping[str, tuple[int, ...]], ...]
    frozen: Mapping[str, tuple[int, ...]]
    paddings: tuple[tuple[int, ...], ...]
    models: tuple[Path, ...]
    optimizers: tuple[Path, ...]
    trust: bool

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, by the names in that run's module."""
        return {name: shape for group in (*self.groups, self.frozen) for name, shape in group.items()}

    def rank(self, number: int) -> tuple[list[Piece], int]:
        """What a rank's files hold of each tensor, and its optimizer's step.

        Raises:
            CheckpointError: a file cannot be read or is shorter than the parameters need.
        """
        path = self.optimizers[number]
        saved = _load(path, self.trust)["optimizer_state_dict"]
        try:
            weights, moments, step = _flat_states(saved, self.stage)
            own = _partitions(self, weights, number) if self.stage == 3 else _ranges(self, weights, moments, number)
            pieces = [
                Piece(name, start, _values(weights, moments, group, at, stop - start))
                for name, start, stop, group, at in own
            ]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is not laid out as DeepSpeed 0.19 does it ({type(error).__name__}: {error}); load it there "
                "and save it again."
            ) from None
        return pieces + list(self._frozen_parts(number)), int(step if step is not None else self.steps)

    def _frozen_parts(self, number: int) -> Iterator[Piece]:
        if self.stage < 3:
            if number == 0 and self.frozen:
                module = _load(self.models[0], self.trust)["module"]
                yield from (Piece(name, 0, {WEIGHT: module[name].reshape(-1)}) for name in self.frozen)
            return
        if self.frozen:
            parts = _load(self.models[number], self.trust)["frozen_param_fragments"]
            for name, shape in self.frozen.items():
                size = -(-math.prod(shape) // len(self.optimizers))
                start, stop = number * size, min((number + 1) * size, math.prod(shape))
                if start < stop:
                    yield Piece(name, start, {WEIGHT: parts[name].reshape(-1)[: stop - start]})


def open_checkpoint(folder: Path, tag: str | None = None, trust: bool = False) -> DeepSpeedCheckpoint:
    """Finds a checkpoint's files and checks that they are all there.

    Args:
        folder: what was passed to `save_checkpoint`, or the folder of one tag in it.
        tag: the one named in `latest` if None.
        trust: unpickle classes of any kind, which runs code that the files name.

    Raises:
        CheckpointError: no checkpoint of a data-parallel ZeRO run, or files are missing.
    """
    place = _place(folder, tag)
    models = _by_rank(place.glob("*_model_states.pt"), r"mp_rank_")
    optimizers = _by_rank(place.glob("*_optim_states.pt"), r"pp_rank_")
    foreign = sorted(path.name for path in place.glob("*mp_rank_*") if not re.search(r"mp_rank_00_", path.name))
    if foreign or any(place.glob("layer_*")) or any(place.glob("*expert_*")):
        raise CheckpointError(
            f"{place} was written with tensor, pipeline or expert parallelism; import one of a data-parallel run."
        )
    if not models:
        raise CheckpointError(f"{place} holds no DeepSpeed checkpoint: *_model_states.pt is missing; name its folder.")
    if not optimizers:
        raise CheckpointError(
            f"{place} has no *_optim_states.pt: it was written with ZeRO 0 or without optimizer states; import one of "
            "ZeRO 1, 2 or 3."
        )
    shared = _load(models[0], trust)
    first = _load(optimizers[0], trust)["optimizer_state_dict"]
    try:
        stage, count = int(first["zero_stage"]), first["partition_count"]
        count = max(count) if isinstance(count, list) else int(count)
        groups = tuple({name: tuple(shape) for name, shape in group.items()} for group in shared["param_shapes"])
        alignment = first.get("param_alignment_paddings") or [[0] * len(group) for group in groups]
        frozen = _frozen_shapes(shared, {name for group in groups for name in group})
        steps, version = int(shared["global_steps"]), str(shared["ds_version"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{place} is not laid out as DeepSpeed 0.19 does it ({error}); save it there.") from None
    wanted = {"*_optim_states.pt": len(optimizers)} | ({"*_model_states.pt": len(models)} if stage == 3 else {})
    for pattern, found in wanted.items():
        if found != count:
            raise CheckpointError(f"{place} has {found} files {pattern} of {count} ranks; restore the missing ones.")
    paddings = tuple(tuple(group) for group in alignment)
    return DeepSpeedCheckpoint(
        place, stage, steps, version, groups, frozen, paddings, tuple(models), tuple(optimizers), trust
    )


Part = tuple[str, int, int, int, int]
"""Tensor, [start, stop) in it, and the group and the place in the rank's flat buffer."""


def _ranges(
    saved: DeepSpeedCheckpoint, weights: list[Tensor], moments: list[Mapping[str, Any]], rank: int
) -> Iterator[Part]:
    """ZeRO 1 and 2: a group's parameters lie end to end in a buffer that is cut into one even part a rank."""
    for group, shapes in enumerate(saved.groups):
        total = sum(map(math.prod, shapes.values())) + sum(saved.paddings[group])
        # Weights lack the padding behind the last part, moments have it unless DeepSpeed's elastic format cut it off.
        size = max(weights[group].numel(), *(moments[group][name].numel() for name in MOMENTS))
        size = max(size, -(-total // len(saved.optimizers)))
        left, right, offset = rank * size, rank * size + weights[group].numel(), 0
        for (name, shape), padding in zip(shapes.items(), saved.paddings[group], strict=True):
            numel = math.prod(shape)
            low, high = max(left, offset), min((rank + 1) * size, offset + numel)
            if low < high:
                if high > right:
                    raise CheckpointError(f"{saved.optimizers[rank]} ends within tensor {name!r}; restore the file.")
                yield name, low - offset, high - offset, group, low - left
            offset += numel + padding


def _partitions(saved: DeepSpeedCheckpoint, weights: list[Tensor], rank: int) -> Iterator[Part]:
    """ZeRO 3: every parameter is cut into one even part a rank; a rank's parts lie end to end in each group."""
    for group, shapes in enumerate(saved.groups):
        offset = 0
        for name, shape in shapes.items():
            numel = math.prod(shape)
            size = -(-numel // len(saved.optimizers))
            start, stop = rank * size, min((rank + 1) * size, numel)
            if offset + stop - start > weights[group].numel():
                raise CheckpointError(f"{saved.optimizers[rank]} ends within tensor {name!r}; restore the file.")
            if start < stop:
                yield name, start, stop, group, offset
            offset += size


def _values(
    weights: list[Tensor], moments: list[Mapping[str, Any]], group: int, at: int, count: int
) -> dict[str, Tensor]:
    flat = {WEIGHT: weights[group], **{name: moments[group][name] for name in MOMENTS}}
    return {state: values.reshape(-1)[at : at + count].float() for state, values in flat.items()}


def _flat_states(saved: Mapping[str, Any], stage: int) -> tuple[list[Tensor], list[Mapping[str, Any]], float | None]:
    """Flat masters and moments of each group, and the optimizer's step if it keeps one."""
    weights = saved["fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"]
    base = saved["optimizer_state_dict" if stage == 3 else "base_optimizer_state"]
    states = base if isinstance(base, list) else [base["state"][group] for group in range(len(weights))]
    steps = {float(state["step"]) for state in states if "step" in state}
    if not steps and isinstance(base, dict):
        steps = {float(group["step"]) for group in base["param_groups"] if "step" in group}
    if len(steps) > 1:
        raise KeyError(f"optimizer steps {sorted(steps)} of different groups")
    return list(weights), list(states), next(iter(steps), None)


def _frozen_shapes(shared: Mapping[str, Any], trained: set[str]) -> dict[str, tuple[int, ...]]:
    if shared.get("frozen_param_shapes"):
        return {name: tuple(shape) for name, shape in shared["frozen_param_shapes"].items()}
    apart = trained | set(shared["buffer_names"]) | set(shared.get("shared_params") or ())
    return {name: tuple(t.shape) for name, t in shared["module"].items() if name not in apart and t.numel()}


def _place(folder: Path, tag: str | None) -> Path:
    if tag is not None:
        return folder / tag
    latest = folder / "latest"
    return folder / latest.read_text().strip() if latest.is_file() else folder


def _by_rank(paths: Iterable[Path], before: str) -> list[Path]:
    """In the order of the data-parallel rank in the name."""

    def number(path: Path) -> int:
        found = re.search(r"pp_rank_(\d+)", path.name) or re.search(before + r"(\d+)", path.name)
        return int(found.group(1)) if found else 0

    return sorted(paths, key=number)


def _load(path: Path, trust: bool) -> dict[str, Any]:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    known = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
    try:
        with torch.serialization.safe_globals([] if trust else known):
            loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=not trust)
    except pickle.UnpicklingError as error:
        classes = re.findall(r"GLOBAL (\S+)", str(error))
        what = f"names {classes[0]}, which" if classes else "holds classes that"
        raise CheckpointError(f"{path} {what} could run code when read; pass --trust if you trust it.") from None
    except (OSError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}; restore the file.") from None
    return dict(loaded)
