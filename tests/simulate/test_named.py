from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasmo.simulate.model import ModelError
from elasmo.simulate.named import named_model


def test_llava_is_llama_with_a_clip_tower_of_576_tokens() -> None:
    model = named_model("llava-7b")
    assert model.parameters / 1e9 == pytest.approx(7.06, rel=0.01)
    assert model.towers[0].parameters / 1e6 == pytest.approx(304 - 12.6 + 21, rel=0.02)  # 23 layers and the projector
    assert model.towers[0].frozen and model.towers[0].tokens == 576


def test_a_config_json_and_a_folder_with_one_are_read(tmp_path: Path) -> None:
    raw = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert named_model(str(tmp_path)).depth == named_model(str(tmp_path / "config.json")).depth == 2


def test_elasmos_own_config_is_read() -> None:
    model = named_model("pipelines/digits.yaml")
    assert {tower.kind for tower in model.towers} >= {"vision"}


@pytest.mark.parametrize(("text", "reason"), [("no.json", "cannot be read"), ("GPT-9", "not among the published")])
def test_what_is_no_model_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        named_model(text)


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(ModelError, match="no object"):
        named_model(str(path))
