"""Low-rank adapters (Hu et al. 2021): thin trained matrices beside frozen ones, merged or exported at the end."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import LoraConfig, ModelConfig
from elasmo.model.fragment_writer import commit, with_sums
from elasmo.model.fragments import (
    WEIGHT,
    Fragment,
    FragmentFile,
    FragmentReader,
    Manifest,
    fragment_key,
)
from elasmo.model.hugging_face_folder import check_export_target, files_named, staged
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.safetensors_stream import TensorSpec, write_safetensors
from elasmo.model.stores import Store

FROZEN = ("*", "!*.lora_a", "!*.lora_b")
"""What training adapters freezes; see `elasmo.train.freeze`."""
A, B = "lora_a", "lora_b"
ADAPTERS = "adapter_model.safetensors"


class LoraError(ValueError):
    """Adapters for matrices that the model does not have."""


class LoraLinear(nn.Linear):
    """A linear layer with an adapter: x W' + b + scale (x A') B', where B starts at zero."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float

    @classmethod
    def of(cls, linear: nn.Linear, config: LoraConfig, generator: torch.Generator) -> LoraLinear:
        """Takes over a layer's weight and bias; one without values (on `meta`) gets an adapter without values."""
        made = cls(1, 1, bias=False, device="meta")
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.weight, made.bias = linear.weight, linear.bias
        if linear.weight.is_meta:
            values = torch.empty(config.rank, linear.in_features, device="meta")
        else:
            values = torch.randn(config.rank, linear.in_features, generator=generator)
        made.lora_a = nn.Parameter(values / math.sqrt(linear.in_features))
        made.lora_b = nn.Parameter(torch.zeros(linear.out_features, config.rank, device=values.device))
        made.scale = config.alpha / config.rank
        return made

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


def add_adapters(model: MultimodalDecoder, config: LoraConfig, seed: int) -> None:
    """Puts adapters beside the decoder's matrices of the configured names; the model's output stays the same.

    Raises:
        LoraError: a name is none of the decoder's matrices.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    found = set()
    for parent in model.decoder.modules():
        for name, child in list(parent.named_children()):
            if name in config.targets and type(child) is nn.Linear:
                setattr(parent, name, LoraLinear.of(child, config, generator))
                found.add(name)
    missing = [name for name in config.targets if name not in found]
    if missing:
        known = sorted({name.split(".")[-1] for name, m in model.decoder.named_modules() if isinstance(m, nn.Linear)})
        raise LoraError(f"train.lora.targets has {missing[0]!r}; the decoder's matrices are {', '.join(known)}.")


def merge(checkpoint: str | Path | Store, out: Path, config: LoraConfig) -> Path:
    """Writes a checkpoint's weights with the adapters added in, tensor by tensor, into the folder `out`.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    reader = FragmentReader(checkpoint)
    shapes = {name: shape for name, shape in reader.manifest.shapes.items() if not name.endswith((A, B))}
    fragments = {name: Fragment(name, 0, math.prod(shape), "merged.safetensors") for name, shape in shapes.items()}
    keys = {fragment_key(fragment, WEIGHT): name for name, fragment in fragments.items()}

    def value(key: str) -> Tensor:
        name = keys[key]
        weight = reader.tensor(name)
        stem = name.removesuffix("weight")
        if f"{stem}{A}" in reader.manifest.shapes:
            weight = weight + config.alpha / config.rank * reader.tensor(f"{stem}{B}") @ reader.tensor(f"{stem}{A}")
        return weight.reshape(-1)

    temporary = out.with_name(f".{out.name}")
    temporary.mkdir(parents=True, exist_ok=True)
    specs = {key: TensorSpec("F32", (math.prod(shapes[name]),)) for key, name in keys.items()}
    written = write_safetensors(temporary / "merged.safetensors", specs, value, {})
    files = (FragmentFile("merged.safetensors", written.bytes, written.sha256),)
    parts = tuple(with_sums(fragment, (WEIGHT,), specs, written.crc32) for fragment in fragments.values())
    commit(temporary, out, Manifest(reader.manifest.step, shapes, (WEIGHT,), parts, files))
    return out


def export(checkpoint: str | Path | Store, out: Path, config: LoraConfig, model: ModelConfig) -> Path:
    """Writes a checkpoint's adapters as PEFT does: `adapter_model.safetensors` and `adapter_config.json`.

    Names are those of the modules that transformers builds, which nests a multimodal model's decoder. There the targets
    are a pattern of full names, because towers have matrices of the same names.

    Raises:
        HuggingFaceError: `out` is not empty, or cannot be written.
        CheckpointError: the checkpoint is damaged.
    """
    check_export_target(out)
    reader = FragmentReader(checkpoint)
    nested = model.vision is not None or model.audio is not None
    decoder = "model.language_model" if nested else "model"
    names = {f"base_model.model.{decoder}.{theirs}": ours for theirs, ours in _peft_names(reader)}
    matrices = "|".join(map(re.escape, config.targets))
    specs = {theirs: TensorSpec("F32", reader.manifest.shapes[ours]) for theirs, ours in names.items()}
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": rf"{re.escape(decoder)}\.layers\..*\.({matrices})" if nested else list(config.targets),
    }
    with files_named(), staged(out) as new:
        write_safetensors(new / ADAPTERS, specs, lambda name: reader.tensor(names[name]), {"format": "pt"})
        (new / "adapter_config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
    return out / ADAPTERS


def _peft_names(reader: FragmentReader) -> Iterator[tuple[str, str]]:
    for ours in reader.manifest.shapes:
        if ours.endswith((A, B)):
            stem, _, kind = ours.removeprefix("decoder.").rpartition(".")
            yield f"{stem}.lora_{kind[-1].upper()}.weight", ours
