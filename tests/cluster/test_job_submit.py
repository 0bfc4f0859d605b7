"""`ray job submit` as a user types it, on a cluster of its own that knows nothing of this checkout."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import ROOT, TINY

START_S, JOB_S = 90, 180
RUNTIME_ENV = json.dumps({"py_modules": ["platform/elasmo"]})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Head:
    """A `ray start --head` cluster with a home of its own, so that its token is not this user's."""

    def __init__(self, home: Path) -> None:
        self.dashboard, self.metrics = free_port(), free_port()
        # The cluster's Python finds no Elasmo but the one that a job ships.
        hidden = ("PYTHONPATH", "RAY_ADDRESS", "RAY_AUTH_MODE")
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        # As the README says: a token first, then the mode for the cluster and for every client of it.
        self.env["RAY_AUTH_MODE"] = "token"
        self.env["HOME"] = str(home)
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"
        self.ray = str(Path(sys.executable).parent / "ray")
        # Socket paths are limited to 107 bytes; pytest's folders are too long.
        self.temporary = tempfile.TemporaryDirectory(prefix="elasmo-", dir="/tmp", ignore_cleanup_errors=True)
        command = [
            *(self.ray, "start", "--head", "--block", "--num-cpus=2", "--object-store-memory=200000000"),
            *(f"--port={free_port()}", f"--dashboard-port={self.dashboard}", f"--metrics-export-port={self.metrics}"),
            *(
                "--resources",
                '{"trainer": 1}',
                f"--temp-dir={self.temporary.name}",
                f"--ray-client-server-port={free_port()}",
                f"--dashboard-agent-listen-port={free_port()}",
            ),
        ]
        subprocess.run([self.ray, "get-auth-token", "--generate"], env=self.env, check=True, capture_output=True)
        self.log = (home / "head.log").open("w+")
        self.process = subprocess.Popen(
            command, env=self.env, cwd=home, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.dashboard}/api/version", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return  # it answers, and wants a token
            except OSError:
                time.sleep(0.5)
        self.log.seek(0)
        pytest.fail(f"the cluster did not start:\n{self.log.read()[-3000:]}")

    def job(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ray job ...`; a dashboard that is up before its node's agent is asked again until it has one."""
        deadline = time.monotonic() + START_S
        while True:
            done = self._job(*arguments)
            if "No available agent" not in done.stderr or time.monotonic() > deadline:
                return done

    def _job(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.ray, "job", *arguments],
            env={**self.env, "RAY_ADDRESS": f"http://127.0.0.1:{self.dashboard}"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=JOB_S,
        )

    def ask(self, path: str) -> dict[str, Any]:
        """An answer of the dashboard's API, asked with the cluster's token."""
        token = (Path(self.env["HOME"]) / ".ray" / "auth_token").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.dashboard}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return dict(json.load(response))

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self.log.close()
        self.temporary.cleanup()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    started = Head(tmp_path_factory.mktemp("home"))
    yield started
    started.close()


def test_a_submitted_job_trains_with_the_library_it_ships(head: Head, lake: Path, tmp_path: Path) -> None:
    submitted = head.job(
        *("submit", "--submission-id", "train", "--no-wait", "--working-dir", ".", "--runtime-env-json", RUNTIME_ENV),
        *("--", "python", "pipelines/train.py", "--config", "pipelines/digits.yaml"),
        *(override for override in TINY if not override.startswith("ray.")),
        *("train.steps=30", "train.checkpoint_every=10", "train.eval_every=30", "train.workers.max=1"),
        *(f"data.lake={lake}", f"train.storage={tmp_path}"),
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    seen: set[float] = set()
    status, deadline = "PENDING", time.monotonic() + JOB_S
    while status in ("PENDING", "RUNNING") and time.monotonic() < deadline:
        time.sleep(0.5)
        seen |= metrics(head)
        status = str(head.ask("/api/jobs/train")["status"])
    log = str(head.ask("/api/jobs/train/logs")["logs"])
    assert status == "SUCCEEDED", f"{status}\n{log[-4000:]}"
    assert "receipts match the plan: True" in log
    (run,) = tmp_path.glob("*/run.json")
    assert json.loads(run.read_text())["status"] == "succeeded"
    assert any(step > 0 for step in seen), "the dashboard's metrics never showed a committed step"


def metrics(head: Head) -> set[float]:
    """Values of the committed-step gauge that the node exports now."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{head.metrics}/metrics", timeout=5) as page:
            text = page.read().decode()
    except OSError:
        return set()
    return {float(value) for value in re.findall(r"^ray_elasmo_train_step\{.*\} (\S+)$", text, re.MULTILINE)}


def test_the_shipped_library_is_the_one_that_is_imported(head: Head) -> None:
    done = head.job(
        *("submit", "--working-dir", "pipelines", "--runtime-env-json", RUNTIME_ENV, "--"),
        *("python", "-c", "import elasmo; print('from', elasmo.__file__)"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = re.findall(r"^from (\S+)$", done.stdout, re.MULTILINE)
    assert "py_modules_files" in path


def test_a_job_with_a_bad_key_fails_with_the_sentence(head: Head) -> None:
    done = head.job(
        *("submit", "--working-dir", ".", "--runtime-env-json", RUNTIME_ENV, "--"),
        *("python", "pipelines/train.py", "--config", "pipelines/digits.yaml", "train.step=3"),
    )
    assert done.returncode != 0
    assert "did you mean 'train.steps'?" in done.stdout + done.stderr
