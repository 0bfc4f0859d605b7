"""Training starts from the weights of published models, runs and checkpoints, or says what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elasmo.model import published
from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import WEIGHT, CheckpointError, Manifest
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.train.initial import load_initial
from tests.serve.tiny import tiny_model


def only(model: MultimodalDecoder, folder: Path, *prefixes: str) -> Path:
    """A checkpoint of some of a model's tensors."""
    chosen = {name: p for name, p in model.named_parameters() if name.startswith(prefixes)}
    temporary = folder.with_name(f".{folder.name}")
    temporary.mkdir()
    slices = ((name, 0, {WEIGHT: parameter.detach().view(-1)}) for name, parameter in chosen.items())
    file, fragments = write_file(temporary / "weights.safetensors", slices)
    shapes = {name: tuple(parameter.shape) for name, parameter in chosen.items()}
    commit(temporary, folder, Manifest(0, shapes, (WEIGHT,), fragments, (file,)))
    return folder


def test_sources_give_what_they_have_and_the_rest_stays(tmp_path: Path) -> None:
    first, second, started = tiny_model(1)[0], tiny_model(2)[0], tiny_model(3)[0]
    before = {name: parameter.clone() for name, parameter in started.named_parameters()}
    sources = [only(first, tmp_path / "decoder", "decoder", "embed"), only(second, tmp_path / "vision", "vision")]
    left = load_initial(started, [str(source) for source in sources])
    for name, parameter in started.named_parameters():
        source = first if name.startswith(("decoder", "embed")) else second if name.startswith("vision") else None
        wanted = before[name] if source is None else dict(source.named_parameters())[name]
        assert torch.equal(parameter, wanted), name
        assert (name in left) == (source is None)


def test_a_published_model_is_a_source(tmp_path: Path) -> None:
    model, processor = tiny_model(1)
    published.write(tmp_path / "published", "tiny", model, processor, {})
    started = tiny_model(3)[0]
    assert load_initial(started, [str(tmp_path / "published")]) == []
    assert all(torch.equal(a, b) for a, b in zip(started.parameters(), model.parameters(), strict=True))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    model, processor = tiny_model(1)
    source = str(only(model, tmp_path / "all", ""))
    smaller = model.config.model_copy(update={"vision": None})
    with pytest.raises(
        CheckpointError, match=r"train\.init_from: .*all holds tensor 'vision\.[a-z0-9.]+', which the model"
    ):
        load_initial(MultimodalDecoder(smaller, model.vocab_size, processor.table_fields), [source])
    with pytest.raises(
        CheckpointError, match=r"has 'embed_tokens\.weight' in shape \(\d+, \d+\), the model needs \(7,"
    ):
        load_initial(MultimodalDecoder(model.config, 7, processor.table_fields), [source])
    with pytest.raises(CheckpointError, match="is no published model, run or checkpoint"):
        load_initial(model, [str(tmp_path)])
