"""`elasmo import-hf` and `elasmo export-hf` from the command line."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from elasmo.cli.main import app
from tests.model.test_hugging_face import TEXT, saved


def test_a_model_goes_in_and_comes_out_by_two_verbs(tmp_path: Path) -> None:
    theirs = saved(TEXT["llama"](), tmp_path / "hf")
    runner = CliRunner()
    done = runner.invoke(app, ["import-hf", str(tmp_path / "hf"), str(tmp_path / "ours")])
    assert done.exit_code == 0 and "imported LlamaForCausalLM, 21,984 parameters" in done.output
    saved(TEXT["qwen2"](), tmp_path / "other")
    again = ["import-hf", str(tmp_path / "other"), str(tmp_path / "ours")]
    done = runner.invoke(app, again)
    assert "name another folder, or replace that model with --replace." in str(done.exception)
    assert runner.invoke(app, [*again, "--replace"]).exit_code == 0
    assert runner.invoke(app, ["import-hf", str(tmp_path / "hf"), str(tmp_path / "ours"), "--replace"]).exit_code == 0
    done = runner.invoke(app, ["export-hf", str(tmp_path / "ours"), str(tmp_path / "back"), "--shard-mb", "1"])
    assert done.exit_code == 0 and "model.safetensors" in done.output
    again = LlamaForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])
