from __future__ import annotations

import pytest

from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.layout import check_memory, nearest, read_layout
from elasmo.simulate.plan import Plan, PlanError, refusals
from elasmo.simulate.search import Job, UnfitError

MODEL, CLUSTER, JOB = known_model("Llama-3-70B"), parse_cluster("64xH100"), Job(4096, 256)


def test_words_are_a_plan_and_dp_is_what_is_left() -> None:
    plan = read_layout("tp=8, pp=4,chunks=5,recompute=attention+pointwise,overlap_dp=off", MODEL, CLUSTER, JOB)
    assert (plan.dp, plan.tp, plan.pp, plan.chunks, plan.schedule) == (2, 8, 4, 5, "interleaved")
    assert plan.recompute == {"attention", "pointwise"} and plan.sequence_parallel and not plan.overlap_dp
    assert refusals(plan, MODEL, 64) == []
    assert not read_layout("tp=8,sp=off,zero=3", MODEL, CLUSTER, JOB).sequence_parallel


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp=3", r"tp=3 must divide heads=64; the nearest is tp=2\. The nearest legal layout is .*tp="),
        ("dp=4", r"dp x tp x pp x cp = 4 must be the 64 accelerators\. The nearest"),
        ("pp=4,chunks=5,micro_batch=8,dp=16", r"needs micro-batches that pp=4 divides"),
        ("tp=8,pp=4,chunks=5,schedule=1f1b", r"chunks=5 needs schedule=interleaved"),
        ("pp=8,zero=2", r"use zero=1"),
        ("tp=x", "layout=tp=x is not known; tp is a whole number"),
        ("heads=8", "layout=heads=8 is not known; use dp, tp"),
        ("recompute=some", "recompute is none or parts"),
        ("schedule=fast", "schedule is one of gpipe, 1f1b"),
        ("dropout=maybe", "dropout is on or off"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_that_can(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        read_layout(text, MODEL, CLUSTER, JOB)


def test_what_does_not_fit_says_what_would() -> None:
    tight = read_layout("tp=8,pp=1", MODEL, CLUSTER, JOB)
    with pytest.raises(UnfitError, match=r"GiB more than .* The nearest that fits is .*"):
        check_memory(tight.having(zero=0), MODEL, CLUSTER, JOB)
    long = Job(32_768, 256)
    with pytest.raises(UnfitError, match=r"It fits with recompute="):
        check_memory(read_layout("tp=8,pp=8", MODEL, CLUSTER, long), MODEL, CLUSTER, long)
    check_memory(read_layout("tp=8,pp=8,recompute=full", MODEL, CLUSTER, JOB), MODEL, CLUSTER, JOB)


def test_the_nearest_differs_by_the_fewest_doublings() -> None:
    plan = Plan(seq=1, global_batch=64, dp=8, tp=8)
    close, far = plan.having(dp=4, tp=16), plan.having(dp=1, tp=1, pp=64)
    assert nearest(plan, [far, close]) is close and nearest(plan, []) is None
