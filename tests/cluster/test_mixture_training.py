"""A dataset joins a run on Ray at a step: what came before stays, what comes after is mixed, as the receipts prove."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasmo.config import Config, load
from elasmo.data.gold import Gold
from elasmo.data.gold_mixture import SHIFT
from elasmo.data.stream import make_plan, open_gold
from elasmo.ingest.ingest import ingest
from elasmo.train import TrainError, fit
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.run_folder import events, read_summary
from elasmo.train.trace import trace_step
from tests.cluster.conftest import TINY
from tests.pets import line, png, write_dataset

ONE = ("train.workers.max=1", "train.eval_every=100", "train.checkpoint_every=6", "train.steps=12")


@pytest.fixture(scope="module")
def squares(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of another dataset in the same lake, encoded by the digits' own processor."""
    rows = [line(f"square-{n}", {"image": f"{n}.png"}, split="train" if n < 36 else "heldout") for n in range(40)]
    folder = write_dataset(
        tmp_path_factory.mktemp("sets") / "squares", list(rows), {f"{n}.png": png(n) for n in range(40)}
    )
    processor = Gold.open(lake, "digits").path
    ingest(load(None, [f"data.lake={lake}", f"data.processor={processor}", *TINY], {}), folder)
    return folder


@pytest.fixture(scope="module")
def cluster(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of one node, and a folder for runs on it."""
    with LocalCluster(load(None, [*TINY, "ray.nodes=1"], {}).ray, dashboard=False) as local:
        local.connect()
        yield tmp_path_factory.mktemp("runs")


def config(lake: Path, storage: Path, *changes: str) -> Config:
    return load(None, [*TINY, *ONE, f"data.lake={lake}", f"train.storage={storage}", *changes], {})


def test_a_dataset_joins_a_run_mid_way(lake: Path, squares: Path, cluster: Path) -> None:
    alone = fit(config(lake, cluster, "train.stop_after=6"))
    digits, theirs = "{dataset: data/digits, weight: {0: 1, 6: 0.5}}", f"{{dataset: {squares}, weight: {{6: 0.5}}}}"
    mixed = f"data.mixture=[{digits}, {theirs}]"
    catalogue = cluster / "lineage.jsonl"
    joined = config(lake, cluster, mixed, f"data.openlineage={catalogue}")
    result = fit(joined, run_id=alone.run_id)
    assert result.receipts.match and result.steps == 12
    plan = make_plan(joined, open_gold(joined))
    before = {row >> SHIFT for step in range(6) for slot in plan.slots(step) for row in slot.row_ids}
    after = [row >> SHIFT for step in range(6, 12) for slot in plan.slots(step) for row in slot.row_ids]
    assert before == {0} and set(after) == {0, 1}
    logged = {event["step"]: event["receipt"] for event in events(result.folder, "step")}
    assert logged == {step: plan.receipt(step - 1) for step in range(1, 13)}
    assert {row.dataset for row in trace_step(result.folder, 12).rows} == {"digits", "squares"}
    sent = [json.loads(row) for row in catalogue.read_text().splitlines()]
    assert [(event["job"]["name"], event["eventType"]) for event in sent] == [
        ("train.digits", "START"),
        ("train.digits", "COMPLETE"),
    ]
    assert [source["name"] for source in sent[1]["inputs"]] == [
        str(gold.path.resolve()) for gold in open_gold(joined).golds
    ]
    assert sent[1]["outputs"][0]["name"] == str(result.folder)
    assert [source["dataset"] for source in read_summary(result.folder)["gold"]["sources"]] == ["digits", "squares"]


@pytest.mark.full
def test_a_run_does_not_go_on_under_another_past(lake: Path, squares: Path, cluster: Path) -> None:
    alone = fit(config(lake, cluster, "train.stop_after=6", "name=past"))
    other = f"data.mixture=[{{dataset: data/digits, weight: 1}}, {{dataset: {squares}, weight: 1}}]"
    with pytest.raises(TrainError, match=r"was written under sources=\[\[0, 'digits'.*with the run's own config"):
        fit(config(lake, cluster, other, "name=past"), run_id=alone.run_id)
