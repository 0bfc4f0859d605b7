"""`elasmo doctor` on this machine: the facts are read, and the exit code follows the checks."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from elasmo.cli.doctor_checks import CHECKS
from elasmo.cli.doctor_facts import gather
from elasmo.cli.main import main
from elasmo.config import load


def run_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    monkeypatch.setattr(sys, "argv", ["elasmo", "doctor", "--json", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0), {check["name"]: check for check in json.loads(capsys.readouterr().out)}


def test_unwritable_storage_fails_and_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    blocked = tmp_path / "runs"
    blocked.write_text("a file, where the folder should be")
    code, checks = run_json(monkeypatch, capsys, f"train.storage={blocked}")
    assert code == 1
    assert len(checks) == len(CHECKS)
    assert checks["storage"]["status"] == "fail" and "it is a file" in checks["storage"]["found"]


def test_this_machines_torch_and_packages_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import torch

    _, checks = run_json(monkeypatch, capsys, f"train.storage={tmp_path}")
    assert torch.__version__ in checks["torch"]["found"]
    assert checks["storage"]["status"] == "ok"


def test_a_busy_port_is_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = gather(load(overrides=[f"serve.port={port}", f"train.storage={tmp_path}"]))
    assert port in facts.busy_ports


def test_only_a_ray_cluster_that_answers_counts_as_running(tmp_path: Path) -> None:
    config = load(overrides=[f"train.storage={tmp_path}"])
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{server.getsockname()[1]}")
        assert gather(config, {"RAY_TMPDIR": str(tmp_path)}).ray_running
    assert not gather(config, {"RAY_TMPDIR": str(tmp_path)}).ray_running


def test_a_lock_of_a_killed_build_is_seen_with_its_age(tmp_path: Path) -> None:
    lock = tmp_path / "py311_cpu" / "shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (1_000_000, 1_000_000))
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "RAY_TMPDIR": str(tmp_path)}
    facts = gather(load(overrides=[f"train.storage={tmp_path}"]), env)
    assert facts.build_locks[str(lock)] > 1e6
    assert facts.ray_temp == str(tmp_path / "ray")


def test_a_missing_storage_folder_is_not_made(tmp_path: Path) -> None:
    facts = gather(load(overrides=[f"train.storage={tmp_path / 'new' / 'runs'}"]))
    assert facts.storage_error is None
    assert list(tmp_path.iterdir()) == []
