from __future__ import annotations

import json

import pytest

from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.goodput import Failures, goodput
from elasmo.simulate.plan import Plan
from elasmo.simulate.train_report import CATEGORIES, PARTS, facts, run, run_json
from elasmo.simulate.training import simulate_step

MODEL, CLUSTER = known_model("Llama-3-8B"), parse_cluster("8xH100")
STEP = simulate_step(MODEL, Plan(seq=4096, global_batch=32, tp=2, pp=2, dp=2), CLUSTER, events=True)


def test_a_run_is_its_step_times_its_goodput() -> None:
    made = run(MODEL, CLUSTER, STEP, Failures(mtbf_h=100), elastic=False)
    assert made.left == goodput(8, Failures(mtbf_h=100), 8, False)
    plain = json.loads(json.dumps(run_json(made)))
    assert plain["useful_tokens_per_s"] == pytest.approx(STEP.tokens_per_s * made.left.useful)
    assert plain["useful_usd_per_mtoken"] == pytest.approx(plain["usd_per_mtoken"] / made.left.useful)
    assert sum(plain["breakdown_s"].values()) == pytest.approx(plain["seconds"]) and plain["simulated"] is True
    assert dict(facts(made))["MFU, HFU"] == f"{STEP.mfu:.1%}, {STEP.hfu:.1%}"


def test_every_second_and_every_byte_has_a_name() -> None:
    assert set(STEP.breakdown) <= set(PARTS)
    assert set(CATEGORIES) | {"total"} == set(STEP.memory.as_dict())
