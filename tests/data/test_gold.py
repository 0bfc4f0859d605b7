"""Reading gold: any order, frozen ids, costs that equal what is read, damage refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.config import Config
from elasmo.data.gold import Gold, GoldError, GoldRowError, pack_messages, unpack_messages
from elasmo.data.index import MODULES
from elasmo.ingest.ingest import ingest
from elasmo.model.sample import Audio, Image, Message, Table, Text
from elasmo.model.tokenizer import AUDIO, IMAGE, TABLE
from tests.pets import png, wav


@pytest.fixture
def gold(pets: Path, config: Config) -> Gold:
    ingest(config, pets)
    return Gold.open(config.data.lake, pets)


def test_rows_come_in_the_order_asked_for_with_their_parts(gold: Gold) -> None:
    rows = gold.read([23, 0, 7, 0])
    assert [row.row_id for row in rows] == [23, 0, 7, 0]
    for row in gold.read(range(24)):
        number = int(row.key.removeprefix("row-"))
        assert row.answer == f"answer {number % 3}" and row.question == "Is it a cat?"
        assert row.images == ([png(number)] if "image" in row.modality else [])
        assert row.audio == ([wav(number)] if "audio" in row.modality else [])
        coat = "black" if number % 2 else None
        assert row.record == ({"age": number, "coat": coat} if row.modality == "table" else None)
        assert row.concept == f"pet-{number}"
        assert row.source[0] == f"rows/rows.jsonl:{number + 1}"


def test_the_answer_is_the_target_and_the_tokens_read_back(gold: Gold) -> None:
    for row in gold.read(range(24)):
        targets = row.encoded.tokens[row.encoded.loss_mask == 1]
        assert gold.processor().decode(targets.tolist()) == row.answer
        assert gold.processor().decode(row.encoded.tokens.tolist()) == row.question + row.answer


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_index_states_what_each_row_costs(gold: Gold, split: str) -> None:
    index = gold.index(split)  # type: ignore[arg-type]
    rows = gold.read(index.row_ids)
    assert {row.split for row in rows} == {split}
    assert [index.modalities[code] for code in index.modality] == [row.modality for row in rows]
    counted = [
        [len(t), *((t == token).sum() for token in (IMAGE, AUDIO, TABLE))] for t in (r.encoded.tokens for r in rows)
    ]
    assert MODULES == ("decoder", "vision", "audio", "table")
    assert np.array_equal(index.costs, counted)
    assert index.target_tokens.tolist() == [int(row.encoded.loss_mask.sum()) for row in rows]
    assert (index.row_ids.dtype, index.shard.dtype, index.modality.dtype) == (np.int64, np.int32, np.int8)
    assert (index.costs.dtype, index.target_tokens.dtype) == (np.uint16, np.uint16)  # they are small


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_for_pretraining_index_and_rows_count_all_text(gold: Gold, split: str) -> None:
    both = Gold(gold._snapshot, loss_on="all")
    index = both.index(split)  # type: ignore[arg-type]
    rows = both.read(index.row_ids)
    assert index.target_tokens.tolist() == [row.encoded.costs().target for row in rows]
    assert index.target_tokens.dtype == np.uint16
    for row, answer_tokens in zip(rows, gold.index(split).target_tokens, strict=True):  # type: ignore[arg-type]
        media = np.isin(row.encoded.tokens, (IMAGE, AUDIO, TABLE))
        assert row.encoded.costs().target == len(media) - media.sum() - 1 > answer_tokens


def test_row_ids_count_up_over_both_splits_and_shards_do_not_mix_them(gold: Gold) -> None:
    train, heldout = gold.index("train"), gold.index("heldout")
    assert np.array_equal(np.concatenate([train.row_ids, heldout.row_ids]), np.arange(24))
    assert not set(train.shard) & set(heldout.shard)


def test_few_shards_stay_open(gold: Gold) -> None:
    reader = Gold(gold._snapshot, open_shards=1)
    assert [row.row_id for row in reader.read([0, 23, 1, 22])] == [0, 23, 1, 22]
    assert len(reader._open) == 1


def test_a_row_that_is_not_there_is_named(gold: Gold) -> None:
    for row_id in (-1, 24):
        with pytest.raises(GoldError, match=rf"has no row {row_id}; ids run from 0 to 23"):
            gold.read([row_id])


def test_no_gold_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(GoldError, match=r"has no gold of dataset 'digits'; run `elasmo ingest data/digits"):
        Gold.open(tmp_path, "data/digits")
    with pytest.raises(GoldError, match="has no gold snapshot 'feed'"):
        Gold.open(tmp_path, "digits", "feed")


def test_a_damaged_shard_is_refused_at_read_and_by_verify(gold: Gold) -> None:
    shard = gold.path / "train-00000.parquet"
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(GoldError, match=r"train-00000\.parquet differs from its manifest"):
        gold.read([0])
    with pytest.raises(GoldError, match="differs"):
        gold.verify()


def test_a_row_that_no_longer_decodes_is_named_by_id_and_key(gold: Gold, monkeypatch: pytest.MonkeyPatch) -> None:
    image = next(row for row in gold.read(range(20)) if row.modality == "image")
    strict = gold.limits.model_copy(update={"image_pixels": 1})
    monkeypatch.setitem(gold.__dict__, "limits", strict)
    with pytest.raises(
        GoldRowError, match=rf"Row {image.row_id} of gold {gold.snapshot} \({image.key}\).*image_pixels"
    ):
        gold.read([image.row_id])


def test_a_model_that_reads_media_in_another_way_is_refused(gold: Gold, config: Config) -> None:
    gold.check_model(config.model)
    deeper = config.model.decoder.model_copy(update={"layers": 6})
    gold.check_model(config.model.model_copy(update={"decoder": deeper}))
    coarser = config.model.vision.model_copy(update={"patch": 2})
    with pytest.raises(GoldError, match="was tokenised for other"):
        gold.check_model(config.model.model_copy(update={"vision": coarser}))


def test_gold_travels_to_another_process(gold: Gold) -> None:
    gold.read([0])
    copy = pickle.loads(pickle.dumps(Gold(gold._snapshot)))
    assert copy.read([3])[0].key == gold.read([3])[0].key


SEGMENTS = st.one_of(
    st.builds(Text, st.text(max_size=8)),
    st.builds(Image, st.binary(max_size=8)),
    st.builds(Audio, st.binary(max_size=8)),
    st.builds(Table, st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers(), st.text(max_size=3)))),
)
MESSAGES = st.builds(
    Message, st.sampled_from(["system", "user", "assistant"]), st.lists(SEGMENTS, max_size=4).map(tuple)
)


@given(st.lists(MESSAGES, max_size=4).map(tuple))
def test_packed_messages_come_back_unchanged(messages: tuple[Message, ...]) -> None:
    assert unpack_messages(*pack_messages(messages)) == messages
