"""`elasmo checkpoint ls`, `verify` and `diff`, on runs whose checkpoints different layouts wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from elasmo.model.fragment_writer import Piece, put_manifest, write_fragments
from elasmo.model.fragments import Manifest
from elasmo.model.stores import open_store
from elasmo.train import retention
from tests.cli.test_report import elasmo

SHAPES = {"a": (4, 3), "b": (5,)}
LAYOUT = {"dp": 2, "tp": 2, "pp": 1, "sp": 1, "ep": 1, "zero_stage": 1, "tp_sequence": False, "schedule": "1f1b"}


def values(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    made = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    made["b"][1] += 0.5 * (step - 10)
    return made


def save(root: Path, step: int, cut: int = 2) -> Path:
    """A checkpoint of which a tensor is cut into column boxes."""
    store, made = open_store(root).child(retention.folder_name(step)), values(step)
    edges = [(0, cut), (cut, 3)] if cut else [(0, 3)]
    pieces = [
        Piece("a", 0, {"weight": made["a"][:, low:high].reshape(-1)}, ((0, 4), (low, high))) for low, high in edges
    ]
    moments = {"weight": made["b"], "exp_avg": made["b"] * 2}
    written = write_fragments(store, f"rank-{cut}.safetensors", [*pieces, Piece("b", 0, moments)])
    meta = {"layout": LAYOUT, "cursor": {"step": step, "seed": 0}}
    put_manifest(store, Manifest(step, SHAPES, ("weight", "exp_avg"), written[1], (written[0],), meta))
    return root / retention.folder_name(step)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20):
        save(tmp_path / "checkpoints", step)
    (tmp_path / "checkpoints" / "step-000030").mkdir()
    (tmp_path / "run.json").write_text("{}")
    retention.write_best(tmp_path, "step-000010", "loss", 1.0)
    return tmp_path


def test_committed_checkpoints_are_listed_with_what_keeps_them(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasmo(monkeypatch, "checkpoint", "ls", str(run)) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("step       10  ") and first.endswith("step-000010  [best]")
    assert "in 1 file(s), 2 tensors  dp=2 tp=2 zero=1" in second and second.endswith("step-000020  [newest]")
    assert last == "2 committed, 1 not committed (ignored)"
    assert elasmo(monkeypatch, "checkpoint", "ls", "--json", str(run / "checkpoints")) == 0
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == [10, 20]


def test_verify_reads_every_byte_and_exits_1_naming_the_tensor(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasmo(monkeypatch, "checkpoint", "verify", str(run)) == 0
    assert capsys.readouterr().out.count(": whole, ") == 2
    path = next((run / "checkpoints" / "step-000020").glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert elasmo(monkeypatch, "checkpoint", "verify", str(run)) == 1
    good, bad = capsys.readouterr().out.splitlines()
    assert good.startswith("step-000010: whole") and "differs from its manifest in 'exp_avg' of tensor 'b'" in bad


def test_verify_of_nothing_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert elasmo(monkeypatch, "checkpoint", "verify", str(tmp_path)) == 2
    assert "holds no committed checkpoint; name a run's folder" in capsys.readouterr().err


def test_diff_compares_across_layouts_and_says_which_tensor_changed_most(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / "other", 10, cut=0)
    first = str(run / "checkpoints" / "step-000010")
    assert elasmo(monkeypatch, "checkpoint", "diff", first, str(other), "--moments") == 0
    assert capsys.readouterr().out == "0 of 3 tensor states differ\n"
    assert elasmo(monkeypatch, "checkpoint", "diff", first, str(run / "checkpoints" / "step-000020")) == 1
    shown = capsys.readouterr().out.splitlines()
    ours, theirs = values(10)["b"], values(20)["b"]
    relative = float((ours - theirs).norm() / ours.norm())
    assert shown == [
        "cursor.step: 10 -> 20",
        "step: 10 -> 20",
        f"{relative:.3e} relative, 5.000e+00 at most  b (weight)",
        "1 of 2 tensor states differ",
    ]
