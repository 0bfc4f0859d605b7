"""What would fail in the workers is refused before a cluster starts, in the workers' own sentences."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elasmo.cli.main import main
from elasmo.config import Config, ConfigError, load
from elasmo.model import published
from elasmo.model.fragments import MANIFEST, CheckpointError
from elasmo.model.lora import LoraError
from elasmo.parallel.planner import LayoutError
from elasmo.train import retention
from elasmo.train.freeze import FreezeError
from elasmo.train.preflight import preflight
from tests.serve.tiny import CONFIG, tiny_model

MODEL, PROCESSOR = tiny_model()


def gold(processor: Any = PROCESSOR) -> Any:
    """Stands for a snapshot, of which its processor is all that is looked at."""
    return SimpleNamespace(check_model=lambda model: None, processor=lambda: processor)


def configured(*overrides: str, **train: Any) -> Config:
    config = load(None, overrides, {})
    tokens = config.model.tokens
    model = CONFIG.model_copy(update={"tokens": tokens})
    return config.model_copy(update={"model": model, "train": config.train.model_copy(update=train)})


def test_what_can_train_passes_with_its_sizes(tmp_path: Path) -> None:
    assert preflight(configured(), gold()) == [1, 2]
    published.write(tmp_path / "published", "tiny", MODEL, PROCESSOR, {})
    source = f"train.init_from=[{tmp_path / 'published'}]"
    adapters = ("train.lora={targets: [q_proj, down_proj]}", "train.freeze=['!*.projector']")
    assert preflight(configured(source, *adapters), gold()) == [1, 2]


@pytest.mark.parametrize(
    ("override", "error", "sentence"),
    [
        ("train.layout.tp=3", LayoutError, "needs a multiple of tp=3 x pp=1 x sp=1 = 3 workers"),
        ("train.layout.tp=2", LayoutError, "on 2 workers: tp=2 x sp=1 must divide kv_heads=1"),
        (
            "train.lora.targets=[qproj]",
            LoraError,
            "targets has 'qproj'; the decoder's matrices are down_proj, gate_proj",
        ),
        (
            "train.freeze=[visoin]",
            FreezeError,
            r"names 'visoin', which matches no part of the model; did you mean 'vis",
        ),
        ("train.freeze=['*']", FreezeError, "freezes every parameter"),
        ("train.init_from=[absent]", CheckpointError, "absent is no published model, run or checkpoint"),
        (
            "model.tokens.image=999",
            ConfigError,
            r"tokens\.image=999 is beyond the vocabulary, whose ids are 0 to 299\.$",
        ),
        ("model.tokens.audio=9", ConfigError, r"tokens\.audio=9 is not the id .* set model\.tokens\.audio=6\.$"),
        ("model.tokens.end=[999]", ConfigError, r"tokens\.end has 999, beyond the vocabulary, whose ids are 0 to 299"),
        ("model.tokens.end=[]", ConfigError, r"tokens\.end=\[\] lacks the id .* set model\.tokens\.end=\[1\]\.$"),
    ],
)
def test_what_a_worker_would_refuse_is_refused(override: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        preflight(configured(override), gold())


def test_sources_of_another_shape_are_refused_without_reading_a_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.write(tmp_path / "published", "tiny", MODEL, PROCESSOR, {})
    config = configured(f"train.init_from=[{tmp_path / 'published'}]")
    wider = CONFIG.decoder.model_copy(update={"ffn": 48})
    wider_model = config.model.model_copy(update={"decoder": wider})
    monkeypatch.setattr("elasmo.model.fragments.FragmentReader.tensor", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(CheckpointError, match=r"in shape \(32, 64\), the model needs \(32, 48\)"):
        preflight(config.model_copy(update={"model": wider_model}), gold())


def test_a_run_that_has_a_checkpoint_reads_no_source(tmp_path: Path) -> None:
    config = configured("train.init_from=[absent]", storage=str(tmp_path))
    with pytest.raises(CheckpointError, match="absent"):
        preflight(config, gold(), "taken-up")
    folder = tmp_path / "taken-up" / "checkpoints" / retention.folder_name(20)
    folder.mkdir(parents=True)
    (folder / MANIFEST).touch()
    assert preflight(config, gold(), "taken-up") == [1, 2]


def test_a_large_model_takes_no_memory_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", lambda *_, **__: pytest.fail("values were drawn"))
    decoder = CONFIG.decoder.model_copy(update={"hidden": 8192, "ffn": 28_672, "layers": 4, "heads": 64, "kv_heads": 8})
    config = configured("train.lora={rank: 64}")
    assert preflight(config.model_copy(update={"model": CONFIG.model_copy(update={"decoder": decoder})}), gold())


@pytest.mark.parametrize("override", ["train.layout.tp=3", "train.freeze=[visoin]", "train.init_from=[absent]"])
def test_elasmo_train_starts_no_cluster_for_what_is_refused(
    override: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("elasmo.data.stream.open_gold", lambda config: gold())
    monkeypatch.setattr(
        "elasmo.train.local_cluster.LocalCluster.__init__", lambda *_: pytest.fail("a cluster was started")
    )
    monkeypatch.setattr(sys, "argv", ["elasmo", "train", "ray.address=local", override])
    with pytest.raises(SystemExit) as exited:
        main()
    told = capsys.readouterr().err
    assert exited.value.code == 2 and told.startswith("elasmo: train.") and len(told.splitlines()) == 1


def test_fit_connects_to_no_cluster_for_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from elasmo.train import driver

    monkeypatch.setattr(driver, "open_gold", lambda config: gold())
    monkeypatch.setattr(driver, "pinned", lambda config, _: config)
    monkeypatch.setattr(driver, "_connect", lambda address: pytest.fail("a cluster was asked"))
    with pytest.raises(LayoutError, match="= 3 workers"):
        driver.fit(configured("train.layout.tp=3"))
