"""The Python SDK in a plain `ray.init` session, as a notebook or a user's own test would call it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from elasmo.config import Config
from elasmo.train import fit, publish, run_state
from elasmo.train.run_folder import events


@pytest.fixture
def session() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_fit_runs_on_a_cluster_that_offers_no_trainers(session: None, tiny: Config) -> None:
    train = tiny.train.model_copy(update={"stop_after": 12, "zero_stage": 2})
    result = fit(tiny.model_copy(update={"train": train}))
    assert result.receipts.match and result.steps == 12
    assert result.evaluation is not None and result.evaluation["step"] == 12
    # Both ranks fit on two CPUs beside Ray Data, since a rank reserves a small share of one.
    assert {event["world"] for event in events(result.folder, "step")} == {2}
    published = publish(result.folder)
    assert published.step == 12


def test_a_run_that_somebody_trains_is_refused(session: None, tiny: Config, tmp_path: Path) -> None:
    other = run_state.start(tiny, tmp_path, "taken")  # the actor lives as long as its driver holds it
    with pytest.raises(run_state.RunBusy, match="Run taken is being trained by another driver"):
        fit(tiny, run_id="taken")
    ray.kill(other)
