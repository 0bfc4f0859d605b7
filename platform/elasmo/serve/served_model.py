"""What the ingress needs of a published model: its public description and its processor, without the weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from elasmo.config import ModelConfig, ServeConfig
from elasmo.model.fragments import MANIFEST
from elasmo.model.imported_processor import AnyProcessor, load_processor
from elasmo.model.published import PROCESSOR, UNREADABLE, PublishedError

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ServedModel:
    """What clients may know of the model.

    Attributes:
        name: the `model` of a request.
        fingerprint: changes when weights or processor do.
        context: most tokens of prompt and completion together.
        created: Unix seconds.
        kv_token_bytes: KV of one token over all layers.
    """

    name: str
    fingerprint: str
    context: int
    created: int
    kv_token_bytes: int


def read_served_model(path: str | Path, config: ServeConfig) -> tuple[ServedModel, AnyProcessor]:
    """Description and processor of the published model at `path`.

    Raises:
        PublishedError: no manifest there, one that cannot be read, or a processor it does not describe.
    """
    folder = Path(path)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        decoder = ModelConfig.model_validate(manifest["model"]).decoder
        model = ServedModel(
            name=config.model_name or manifest["name"],
            fingerprint=f"fp_{manifest['model_hash'][:12]}",
            context=min(decoder.max_seq, config.engine.blocks * config.engine.block_size),
            created=int(datetime.fromisoformat(manifest["created"]).timestamp()),
            kv_token_bytes=decoder.layers * 2 * decoder.kv_heads * decoder.head_size * _ITEM_BYTES[config.engine.dtype],
        )
        processor_hash = manifest["processor_hash"]
    except FileNotFoundError:
        raise PublishedError(f"{folder} holds no published model; write one with `elasmo publish RUN`.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise PublishedError(f"{folder / MANIFEST} is not a manifest of `elasmo publish`: {error}.") from None
    if processor_hash is None:
        raise PublishedError(UNREADABLE.format(name=model.name))
    processor = load_processor(folder / PROCESSOR)
    if processor.fingerprint() != processor_hash:
        raise PublishedError(f"{folder / PROCESSOR} differs from the manifest; publish the model again.")
    return model, processor
