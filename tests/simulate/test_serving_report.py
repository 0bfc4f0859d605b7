from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.deployment import Deployment
from elasmo.simulate.fleet import Fleet, FleetError, serve
from elasmo.simulate.load import Request, poisson
from elasmo.simulate.pool_planner import Replicas
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_report import Objective, compare, distribution, goodput, summarise

CUT = Deployment(served_model("Llama-3.1-8B").model, accelerator("H100"))
FLEET = Fleet(CUT, Replicas(0, 2))


def test_weights_count_as_repeats() -> None:
    values, weights = [3.0, 1.0, 2.0], [1, 5, 4]
    repeated = np.repeat(values, weights)
    found = distribution(values, weights)
    assert found.mean == pytest.approx(repeated.mean())
    assert (found.p50, found.p90, found.p99) == tuple(np.quantile(repeated, (0.5, 0.9, 0.99), method="inverted_cdf"))


def test_an_objective_counts_requests_that_meet_both_halves() -> None:
    run = serve(FLEET, [*([Request(0.0, 100, 10)] * 3), Request(0.0, 10_000_000, 5)])
    loose, tight = (summarise(run, Objective(ttft, 1.0)) for ttft in (10.0, 1e-6))
    assert loose.attainment == pytest.approx(3 / 4) and loose.rejected == 1
    assert tight.attainment == 0.0 and tight.goodput == 0.0
    assert loose.output_tokens_s == pytest.approx(30 / run.duration_s)


def test_energy_is_what_power_takes_over_time() -> None:
    report = summarise(serve(FLEET, poisson(4, 100, 500, 50)), Objective())
    assert report.power_w is not None and report.joules_per_token is not None
    assert report.joules_per_token * report.output_tokens_s == pytest.approx(report.power_w)
    assert 2 * 0.1 * 700 < report.power_w < 2 * 700


def test_pools_of_their_own_keep_prompts_out_of_decode_steps() -> None:
    """Long prompts share steps with decoding sequences where pools are shared: the tail of ITL is theirs."""
    found = compare(replace(FLEET, replicas=Replicas(0, 4)), poisson(12, 400, 4000, 150, seed=2), Objective(2.0, 0.05))
    assert found.split.total == 4 and set(found.tried) == {"1+3", "2+2", "3+1"}
    assert found.changes["ITL p99"] < -0.5 and found.changes["TTFT median"] > 0
    assert found.apart.moved_gb > 0 == found.together.moved_gb


def test_one_replica_cannot_be_split() -> None:
    with pytest.raises(FleetError, match="replicas=1 cannot be split"):
        compare(replace(FLEET, replicas=Replicas(0, 1)), poisson(4, 10, 100, 10), Objective())


def test_goodput_is_the_last_rate_that_meets_the_objective() -> None:
    objective = Objective(1.0, 0.03, 0.9)

    def load(rate: float) -> list[Request]:
        return poisson(rate, 200, 2000, 50, seed=1)

    rate = goodput(FLEET, load, objective, start=8.0, precision=0.1)
    at = [summarise(serve(FLEET, load(each)), objective).attainment for each in (rate, rate * 1.15)]
    assert at[0] >= 0.9 > at[1]
