"""Frozen parts stay as they are bit for bit, under any layout, and the rest trains as in a dense run without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasmo.model.fragments import FragmentReader
from elasmo.parallel.layout import Layout
from elasmo.train import checkpoint, deepspeed_adapter, retention
from elasmo.train.freeze import FreezeError, freeze
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle

ALIGN = ("*", "!*.projector")
TUNE = ("vision", "audio", "table", "!*.projector")


def frozen_names(patterns: tuple[str, ...]) -> list[str]:
    return freeze(oracle.make_model("multimodal"), patterns)


def test_the_last_pattern_that_matches_decides() -> None:
    trained = [name for name, _ in oracle.make_model("multimodal").named_parameters()]
    assert frozen_names(()) == []
    projectors = {f"{tower}.projector.{kind}" for tower in ("vision", "audio", "table") for kind in ("weight", "bias")}
    assert set(trained) - set(frozen_names(ALIGN)) == projectors
    towers = {name for name in trained if name.split(".")[0] in ("vision", "audio", "table")}
    assert set(frozen_names(TUNE)) == towers - projectors
    assert set(frozen_names(("decoder.layers.1", "!decoder.layers.*.mlp"))) == {
        name for name in trained if name.startswith("decoder.layers.1.") and ".mlp." not in name
    }
    assert not [name for name in frozen_names(("decoder.layers.1",)) if name.startswith("decoder.layers.10")]


def test_what_matches_nothing_is_named_with_a_suggestion() -> None:
    with pytest.raises(
        FreezeError, match=r"names 'visoin', which matches no part of the model; did you mean 'vision'\?$"
    ):
        frozen_names(("visoin",))
    with pytest.raises(FreezeError, match="matches no part of the model; its parts are audio, decoder"):
        frozen_names(("zzz",))
    with pytest.raises(FreezeError, match="freezes every parameter"):
        frozen_names(("*",))


def gather(value: Any) -> list[Any]:
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, value)
    return out


def train(rank: int, world: int, layout: Layout, patterns: tuple[str, ...], root: str) -> dict[str, float]:
    deepspeed_adapter.init_distributed(60)
    dense = oracle.dense_run("multimodal", tuple(frozen_names(patterns)))
    engine = layout_run.start("multimodal", layout, patterns)
    worst: dict[str, float] = {}
    for step in range(2):
        loss = layout_run.run_step(engine, "multimodal", step)
        layout_run.note(worst, "loss", abs(loss - dense.losses[step]) / dense.losses[step])
        layout_run.compare_owned(engine, dense, step, worst)
    parallel = (engine.mesh, engine.shards)
    checkpoint.save(engine.deepspeed, Path(root), 2, {"optimizer_step": 2}, rank, gather, parallel)
    return worst


def resume(rank: int, world: int, layout: Layout, patterns: tuple[str, ...], root: str) -> dict[str, float]:
    deepspeed_adapter.init_distributed(60)
    dense = oracle.dense_run("multimodal", tuple(frozen_names(patterns)))
    engine = layout_run.start("multimodal", layout, patterns)
    for _, _, values in deepspeed_adapter.frozen_slices(engine.deepspeed):
        values.zero_()  # what the checkpoint must bring back
    checkpoint.load(engine.deepspeed, Path(root) / retention.folder_name(2), engine.shards, engine.shapes)
    loss = layout_run.run_step(engine, "multimodal", 2)
    worst = {"loss": abs(loss - dense.losses[2]) / dense.losses[2]}
    layout_run.compare_owned(engine, dense, 2, worst)
    return worst


@pytest.mark.parametrize(
    ("patterns", "before", "after"),
    [
        (ALIGN, Layout(dp=2, zero_stage=2), Layout(tp=2, zero_stage=3)),
        pytest.param(ALIGN, Layout(pp=2), Layout(dp=2, zero_stage=3), marks=pytest.mark.full),
        pytest.param(
            TUNE, Layout(dp=3, zero_stage=3), Layout(pp=2, schedule="zero-bubble", chunks=2), marks=pytest.mark.full
        ),
        pytest.param(TUNE, Layout(tp=2, tp_sequence=True), Layout(zero_stage=0), marks=pytest.mark.full),
    ],
)
def test_frozen_parts_survive_training_and_a_change_of_layout(
    tmp_path: Path, patterns: tuple[str, ...], before: Layout, after: Layout
) -> None:
    for worst in run_ranks(before.world, train, before, patterns, str(tmp_path)):
        assert not {name: value for name, value in worst.items() if not value <= 1e-5}
    reader = FragmentReader(tmp_path / retention.folder_name(2))
    initial = dict(oracle.make_model("multimodal").named_parameters())
    frozen = frozen_names(patterns)
    assert frozen and set(reader.manifest.shapes) == set(initial)
    for name in frozen:
        assert torch.equal(reader.tensor(name), initial[name]), name
    assert not torch.equal(reader.tensor("vision.projector.weight"), initial["vision.projector.weight"])
    for worst in run_ranks(after.world, resume, after, patterns, str(tmp_path)):
        assert not {name: value for name, value in worst.items() if not value <= 1e-5}


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=2, zero_stage=3),
        Layout(tp=2, tp_sequence=True),
        pytest.param(Layout(tp=2, zero_stage=3), marks=pytest.mark.full),
        pytest.param(Layout(dp=2, zero_stage=0), marks=pytest.mark.full),
        pytest.param(Layout(sp=2, zero_stage=2), marks=pytest.mark.full),
        pytest.param(Layout(pp=2), marks=pytest.mark.full),
    ],
)
def test_adapters_train_as_in_a_dense_run(layout: Layout) -> None:
    for (worst,) in run_ranks(2, layout_run.distances, "dense+lora", [layout]):
        assert any(".lora_a" in name for name in worst)
        assert not {name: value for name, value in worst.items() if not value <= 1e-5}


def refused_stages(rank: int, world: int, kind: str, patterns: tuple[str, ...]) -> str:
    deepspeed_adapter.init_distributed(60)
    with pytest.raises(FreezeError) as refused:
        layout_run.start(kind, Layout(pp=2), patterns)
    return str(refused.value)


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (("*", "!decoder.layers.0"), "leave pipeline stage 1 of 2 no matrices to train"),
        (("*", "!decoder.layers.3"), "leave pipeline stage 0 of 2 no matrices to train"),
        (("decoder.layers.0", "decoder.layers.1"), "leave pipeline stage 0 of 2 no vectors (norms, biases) to train"),
    ],
)
def test_a_pipeline_whose_stages_train_unlike_kinds_is_refused_on_every_rank(
    patterns: tuple[str, ...], sentence: str
) -> None:
    """DeepSpeed would index an absent parameter group, or wait for a sum that one rank never takes part in."""
    for message in run_ranks(2, refused_stages, "dense", patterns):
        assert sentence in message and message.endswith("set train.layout.pp=1.")


def test_frozen_towers_cost_no_backward_pass() -> None:
    model = oracle.make_model("multimodal")
    freeze(model, ("vision", "audio", "table"))
    from elasmo.model.batch import pack

    media = model.encode(pack(oracle.slots("multimodal", 0)[0]), every_tower=True)
    assert media and not any(values.requires_grad for values in media.values())
