"""Several datasets read as one: ids that stay, the datasets' own rows, refusals, the cursor of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasmo.config import Config, ConfigError, load
from elasmo.data.gold import Gold, GoldError
from elasmo.data.gold_mixture import SHIFT, GoldMixture, local, open_mixture
from elasmo.data.stream import direct, make_plan, open_gold
from elasmo.ingest.ingest import ingest
from tests.pets import good_rows, write_dataset

TRAIN = ["train.global_batch=8", "train.micro_batch=2"]


@pytest.fixture
def two(tmp_path: Path, pets: Path, config: Config) -> Config:
    """Config of a mixture of `pets` and of `strays`, which the processor of pets tokenised."""
    first = ingest(config, pets)
    rows, media = good_rows()
    strays = write_dataset(tmp_path / "strays", rows[::2], media)
    processor = f"{config.data.lake}/pets/gold/{first.gold}"
    ingest(load(None, [f"data.lake={config.data.lake}", f"data.processor={processor}"], {}), strays)
    mixture = f"data.mixture=[{{dataset: {pets}, weight: 3}}, {{dataset: {strays}, weight: {{0: 1, 50: 0}}}}]"
    return load(None, [f"data.lake={config.data.lake}", mixture, *TRAIN], {})


def test_rows_keep_their_own_ids_beside_the_place_of_their_dataset(two: Config) -> None:
    mixture = open_gold(two)
    index = mixture.index("train")
    assert [(s.name, s.rows) for s in index.sources] == [("pets", 20), ("strays", 10)]
    assert {int(row) >> SHIFT for row in index.row_ids} == {0, 1}
    for number, source in enumerate(index.sources):
        gold = Gold.open(two.data.lake, source.name)
        part = slice(source.first, source.first + source.rows)
        own = gold.index("train")
        assert [local(int(row)) for row in index.row_ids[part]] == own.row_ids.tolist()
        assert np.array_equal(index.costs[part], own.costs)
        names = [index.modalities[code] for code in index.modality[part]]
        assert names == [own.modalities[code] for code in own.modality]
        row_id = int(index.row_ids[part][3])
        (row,), (alone,) = mixture.read([row_id]), gold.read([local(row_id)])
        assert (row.row_id, row.key, row.source) == (row_id, alone.key, alone.source)
        assert mixture.of(row_id).name == source.name and number == row_id >> SHIFT


def test_a_mixture_is_read_as_planned(two: Config) -> None:
    mixture = open_gold(two)
    plan = make_plan(two, mixture)
    arrived = [slot for rank in range(2) for slot in direct(plan, mixture, rank, 2, 3, 9)]
    wanted = {(s.step, s.slot): s.row_ids for step in range(3, 9) for s in plan.slots(step)}
    assert {(slot.step, slot.slot): slot.row_ids for slot in arrived} == wanted
    assert {row >> SHIFT for rows in wanted.values() for row in rows} == {0, 1}
    assert {row >> SHIFT for slot in plan.slots(60) for row in slot.row_ids} == {0}


def test_the_cursor_knows_what_was_drawn_and_nothing_that_is_to_come(two: Config) -> None:
    mixture = open_gold(two)
    pets, strays = mixture.golds
    assert mixture.cursor(20) == [[0, "pets", pets.snapshot, [[0, 3.0]]], [1, "strays", strays.snapshot, [[0, 1.0]]]]
    alone = GoldMixture([pets], [{0: 1.0}])
    joined = GoldMixture([pets, strays], [{0: 1.0, 30: 0.5}, {30: 0.5}])
    assert alone.cursor(30) == joined.cursor(30) != joined.cursor(31)
    assert alone.snapshot == pets.snapshot


def test_pinned_sections_name_every_snapshot(two: Config) -> None:
    mixture = open_gold(two)
    pinned = mixture.pinned(two.data)
    assert [source.gold for source in pinned.mixture] == [gold.snapshot for gold in mixture.golds]
    assert open_mixture(pinned).snapshot == mixture.snapshot


def test_datasets_of_two_tokenizers_are_refused(tmp_path: Path, pets: Path, config: Config) -> None:
    ingest(config, pets)
    rows, media = good_rows()
    others = write_dataset(tmp_path / "others", rows[:9], media)
    ingest(config.model_copy(update={"data": config.data.model_copy(update={"vocab_size": 310})}), others)
    mixed = load(None, [f"data.lake={config.data.lake}", f"data.mixture=[{{dataset: {pets}}}, {{dataset: {others}}}]"])
    with pytest.raises(GoldError, match=r"others \(gold .*\) was tokenised by another processor than pets"):
        open_gold(mixed)


def test_a_row_of_no_source_is_refused(two: Config) -> None:
    with pytest.raises(GoldError, match=r"is of source 5; data\.mixture has 2"):
        open_gold(two).read([5 << SHIFT])


@pytest.mark.parametrize(
    ("mixture", "sentence"),
    [
        ("[{dataset: data/a}, {dataset: b/a}]", "mixture names dataset 'a' twice"),
        ("[{dataset: a, weight: 0}]", "mixture has no weight above 0 from step 0 on"),
        ("[{dataset: a, weight: {0: 1, 9: 0}}]", "mixture has no weight above 0 from step 9 on"),
        ("[{dataset: a, weight: -1}]", r"data\.mixture\[0\]\.weight is -1 \(int\): input should be greater than or"),
        ("[{dataset: a, wieght: 1}]", "Unknown config key 'data.mixture.wieght'; did you mean 'data.mixture.weight'"),
    ],
)
def test_mixtures_that_cannot_be_are_refused_at_load(mixture: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(None, [f"data.mixture={mixture}"], {})
