"""What a run would be refused for once its workers run, found before a cluster starts: without weights, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from elasmo.config import Config, ConfigError
from elasmo.data.gold_mixture import GoldMixture
from elasmo.data.stream import slot_caps
from elasmo.model import lora
from elasmo.model.imported_processor import AnyProcessor
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor
from elasmo.model.tokenizer import AUDIO, END, IMAGE, TABLE
from elasmo.parallel import planner
from elasmo.train import retention, run_folder
from elasmo.train.freeze import freeze
from elasmo.train.initial import check_initial


def preflight(config: Config, gold: GoldMixture, run_id: str | None = None) -> list[int]:
    """Checks a configuration against the data it names, in seconds; workers check again what they load.

    Args:
        run_id: an unfinished run to take up; one that has a checkpoint reads nothing of `train.init_from`.

    Returns:
        Numbers of workers in the range on which `train.layout` is legal.

    Raises:
        GoldError: the model reads media in another way than the data was tokenised for.
        ConfigError: a token id that the vocabulary or its tokenizer does not have.
        PackingError: a row that exceeds a cap of `train` by itself.
        LayoutError: `train.layout` suits no number of workers in the range.
        LoraError, FreezeError: a name that is no part of the model, or nothing is left to train.
        CheckpointError, PublishedError: a source of `train.init_from` is absent or does not fit.
    """
    gold.check_model(config.model)
    processor = gold.processor()
    check_tokens(config, processor)
    caps = slot_caps(config.train)
    if caps:
        index = gold.index("train")
        caps.check(index.costs, index.row_ids)
    sizes = planner.legal_sizes(config.train, config.model, processor.vocab_size)
    folder = Path(config.train.storage) / run_id if run_id is not None else None
    resumes = folder is not None and bool(retention.committed(run_folder.checkpoint_root(folder)))
    check_parts(config, processor, () if resumes else config.train.init_from)
    return sizes


def check_tokens(config: Config, processor: AnyProcessor) -> None:
    """Refuses ids of `model.tokens` that never occur in the data, though the model waits for them there.

    Raises:
        ConfigError: names the key, its value and what the tokenizer has.
    """
    tokens, model = config.model.tokens, config.model
    own = isinstance(processor, Processor)
    for name, value, tower, wanted in (
        ("image", tokens.image, model.vision, IMAGE),
        ("audio", tokens.audio, model.audio, AUDIO),
        ("table", tokens.table, model.table if processor.table_fields else None, TABLE),
    ):
        if tower is not None and value >= processor.vocab_size:
            raise ConfigError(
                f"model.tokens.{name}={value} is beyond the vocabulary, whose ids are 0 to {processor.vocab_size - 1}."
            )
        if tower is not None and own and value != wanted:
            raise ConfigError(
                f"model.tokens.{name}={value} is not the id that the dataset's own tokenizer has for it; set "
                f"model.tokens.{name}={wanted}."
            )
    beyond = [value for value in tokens.end if value >= processor.vocab_size]
    if beyond:
        raise ConfigError(
            f"model.tokens.end has {beyond[0]}, beyond the vocabulary, whose ids are 0 to {processor.vocab_size - 1}."
        )
    if own and END not in tokens.end:
        raise ConfigError(
            f"model.tokens.end={list(tokens.end)} lacks the id that ends every answer of the dataset's own tokenizer; "
            f"set model.tokens.end=[{END}]."
        )


def check_parts(config: Config, processor: AnyProcessor, sources: Sequence[str]) -> None:
    """Resolves adapters, frozen parts and the sources of weights on a model without values.

    Raises:
        LoraError, FreezeError, CheckpointError, PublishedError: as in training.
    """
    with torch.device("meta"):
        model = MultimodalDecoder(config.model, processor.vocab_size, processor.table_fields)
    adapters = config.train.lora
    if adapters is not None:
        lora.add_adapters(model, adapters, config.seed)
    freeze(model, (*(lora.FROZEN if adapters is not None else ()), *config.train.freeze))
    check_initial(model, sources)
