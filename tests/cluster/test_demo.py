"""The demo, whole, as `make demo` runs it: what it promises, read from its own figures and from the files it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasmo.model.fragments import FragmentReader
from elasmo.serve.http_port import check_port
from tests.cluster.conftest import ROOT
from tests.cluster.test_job_submit import free_port

LIMIT_S = 1200


@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    port = free_port()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "elasmo.cli.main", "demo"),
            *(f"train.storage={tmp_path / 'runs'}", f"data.lake={tmp_path / 'lake'}", f"serve.port={port}"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    figures = json.loads((tmp_path / "runs" / "demo.json").read_text())
    accuracy = figures["accuracy"]
    assert accuracy["image"] >= 0.95 and accuracy["audio"] >= 0.90 and accuracy["table"] >= 0.95
    assert figures["receipts_match_plan"] is True
    assert figures["pd_tokens_equal_single_engine"] is True
    resize = figures["resize"]
    assert (resize["from_world"], resize["to_world"]) == (2, 1)
    assert resize["steps_redone"] <= figures["config"]["train"]["checkpoint_every"]
    assert resize["losses_compared"] == 10 and resize["losses_max_relative_difference"] <= 1e-5
    assert figures["problems"] == []

    run = Path(figures["folder"])
    served = [json.loads(line) for line in (run / "served.jsonl").read_text().splitlines()]
    assert {example["modality"] for example in served} == {"image", "audio", "table", "image+audio"}
    page = (run / "report.html").read_text()
    assert "2 → 1 workers" in page and served[0]["question"] in page
    FragmentReader(run / "checkpoints" / f"step-{figures['checkpoint_step']:06d}").verify()
    check_port("127.0.0.1", port)  # nothing is left listening
