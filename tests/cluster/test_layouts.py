"""Ray Train runs under a layout: same rows, same losses, same evaluation as one worker, and a model to publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elasmo.config import Config, load
from elasmo.data.stream import make_plan, open_gold
from elasmo.model import published
from elasmo.model.batch import collate
from elasmo.model.fragments import FragmentReader
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.tokenizer import AUDIO, IMAGE, TABLE
from elasmo.parallel.planner import LayoutError
from elasmo.train import RunResult, fit, retention
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.publication import publish
from elasmo.train.run_folder import events
from tests.cluster.conftest import ROOT, TINY

STEPS = 8


def configured(lake: Path, storage: Path, *overrides: str) -> Config:
    own = [f"data.lake={lake}", f"train.storage={storage}", f"train.steps={STEPS}", f"train.eval_every={STEPS}"]
    shape = "model.decoder={hidden: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 64}"
    return load(None, [*TINY, shape, *own, "train.checkpoint_every=4", *overrides], {})


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(lake: Path, storage: Path) -> Iterator[RunResult]:
    """The run of one worker; the cluster of two nodes stays up for the module."""
    config = configured(lake, storage, "train.workers.max=1")
    with LocalCluster(config.ray, dashboard=False) as cluster:
        cluster.connect()
        yield fit(config)


@pytest.mark.full
@pytest.mark.parametrize("layout", ["{tp: 2, tp_sequence: true}", "{pp: 2}", "{sp: 2, recompute: full}"])
def test_a_layout_trains_as_one_worker_does(alone: RunResult, lake: Path, storage: Path, layout: str) -> None:
    config = configured(lake, storage, f"train.layout={layout}")
    result = fit(config)
    assert result.receipts.match and result.steps == STEPS
    ours, theirs = ({e["step"]: e for e in events(run.folder, "step")} for run in (result, alone))
    assert [ours[step]["world"] for step in ours] == [2] * STEPS
    for step, event in theirs.items():
        assert ours[step]["loss"] == pytest.approx(event["loss"], rel=1e-5)
        assert ours[step]["grad_norm"] == pytest.approx(event["grad_norm"], rel=1e-4)
        assert ours[step]["receipt"] == event["receipt"]
        assert ours[step]["target_tokens"] == event["target_tokens"]
        assert ours[step]["tokens"] == event["tokens"]
    (found,), (wanted,) = (events(run.folder, "eval") for run in (result, alone))
    assert found["rows"] == wanted["rows"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    model = published.load(publish(result.folder).folder).model
    assert model.config == config.model


def test_a_layout_that_no_number_of_workers_allows_is_refused_before_anything_starts(
    alone: RunResult, lake: Path, storage: Path
) -> None:
    with pytest.raises(
        LayoutError,
        match=r"tp=3 x pp=1 x sp=1 = 3 workers, and train\.workers\.min=\d to train\.workers\.max=2 has none",
    ):
        fit(configured(lake, storage, "train.layout.tp=3"))
    with pytest.raises(LayoutError, match=r"on 2 workers: tp=1 x sp=2 must divide kv_heads=1"):
        shape = "model.decoder={hidden: 32, layers: 2, heads: 2, kv_heads: 1, ffn: 64}"
        fit(configured(lake, storage, "train.layout.sp=2", shape))


@pytest.mark.full
def test_pretraining_divides_the_loss_of_all_text_by_its_tokens(lake: Path, storage: Path, alone: RunResult) -> None:
    """The oracle: the fresh model's own logits over the first global batch, media and first tokens left out."""
    config = configured(lake, storage, "train.loss_on=all")
    result = fit(config)
    gold = open_gold(load(None, [*TINY, f"data.lake={lake}"], {}))
    plan = make_plan(config, open_gold(config))
    model = MultimodalDecoder(config.model, gold.processor().vocab_size, gold.processor().table_fields)
    model.init_weights(config.seed)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in gold.read([row for slot in plan.slots(0) for row in slot.row_ids]):
            scores = model(collate([row.encoded]))[0, :-1].log_softmax(dim=-1)
            following = torch.from_numpy(row.encoded.tokens).long()[1:]
            text = ~torch.isin(following, torch.tensor([IMAGE, AUDIO, TABLE]))
            total -= float(scores[torch.arange(len(following)), following][text].sum())
            count += int(text.sum())
    first = events(result.folder, "step")[0]
    assert first["target_tokens"] == count
    assert first["loss"] == pytest.approx(total / count, rel=1e-5)
    best = retention.read_best(result.folder)
    assert best is not None and best["metric"] == "negative_loss" and best["value"] < 0


@pytest.mark.full
def test_the_two_stages_of_llava_hand_their_weights_on(alone: RunResult, lake: Path, storage: Path) -> None:
    """The stages' own files, at the size of this test: what is frozen stays, and stage two begins where one ended."""
    weights = [{}]  # type: list[dict[str, torch.Tensor]]
    sources = [alone.folder]
    for stage in ("llava_align", "llava_tune"):
        small = configured(lake, storage).model
        frozen = load(ROOT / "pipelines" / f"{stage}.yaml").train.freeze
        config = configured(lake, storage, f"train.freeze={list(frozen)}", f"train.init_from=[{sources[-1]}]")
        assert config.model == small
        sources.append(fit(config).folder)
    for folder in sources:
        reader = FragmentReader(retention.committed(folder / "checkpoints")[-1])
        weights.append({name: reader.tensor(name) for name in reader.manifest.shapes})
    _, before, aligned, tuned = weights
    for name in before:
        projector = ".projector." in name
        tower = name.split(".")[0] in ("vision", "audio", "table")
        assert torch.equal(before[name], aligned[name]) == (not projector), name
        assert torch.equal(aligned[name], tuned[name]) == (tower and not projector), name
