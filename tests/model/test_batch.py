"""Samples survive the trip through Arrow, and batches hold what their samples hold, in order."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

from elasmo.model.batch import IGNORED, Batch, collate, pack
from elasmo.model.encoded import Costs, Encoded
from elasmo.model.tokenizer import AUDIO, IMAGE, PAD, TABLE


def sample(seed: int, images: int = 0, clips: tuple[int, ...] = (), cells: int = 0, text: int = 6) -> Encoded:
    random = np.random.default_rng(seed)
    placeholders = [IMAGE] * (4 * images) + [AUDIO] * sum(-(-c // 4) for c in clips) + [TABLE] * cells
    tokens = np.array([3, *placeholders, *random.integers(8, 300, text)], np.int32)
    mask = np.zeros(len(tokens), np.uint8)
    mask[-2:] = 1
    return Encoded(
        tokens,
        mask,
        random.integers(0, 256, (images, 8, 8, 1), dtype=np.uint8) if images else np.zeros((0, 0, 0, 0), np.uint8),
        tuple(random.normal(size=(c, 5)).astype(np.float16) for c in clips),
        np.arange(cells, dtype=np.int16),
        random.normal(size=cells).astype(np.float32),
        random.integers(-1, 3, cells).astype(np.int16),
        random.integers(0, 99, 3 * (cells > 1)).astype(np.int32),
        np.array([0, 0, 1][: 3 * (cells > 1)], np.int32),
    )


MIXED = [sample(0, images=2), sample(1, clips=(7, 12)), sample(2, cells=3, text=9), sample(3), sample(4, 1, (3,), 2)]


def assert_equal(left: Encoded, right: Encoded) -> None:
    for name in (
        "tokens",
        "loss_mask",
        "images",
        "cell_fields",
        "cell_values",
        "cell_categories",
        "cell_details",
        "cell_detail_of",
    ):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b), name
    assert len(left.audio) == len(right.audio)
    for a, b in zip(left.audio, right.audio, strict=True):
        assert a.dtype == b.dtype == np.float16 and np.array_equal(a, b)


@pytest.mark.parametrize("original", [*MIXED, Encoded.empty()], ids=["image", "audio", "table", "text", "all", "empty"])
def test_a_row_gives_the_sample_back(original: Encoded) -> None:
    assert_equal(Encoded.from_row(original.to_row()), original)


def test_rows_of_every_kind_share_one_arrow_schema() -> None:
    table = pa.Table.from_pylist([item.to_row() for item in MIXED])
    for row, original in zip(table.to_pylist(), MIXED, strict=True):
        assert_equal(Encoded.from_row(row), original)


def test_costs_count_tokens_of_each_module() -> None:
    assert MIXED[4].costs() == Costs(decoder=14, vision=4, audio=1, table=2, target=2)
    assert Encoded.empty().costs() == Costs(2, 0, 0, 0, 0)


def test_a_first_token_is_never_a_target() -> None:
    all_targets = Encoded.of_tokens(np.array([9, 10, 11], np.int32), np.ones(3, np.uint8))
    assert all_targets.costs().target == 2 == int((collate([all_targets]).labels >= 0).sum())


def test_all_text_is_a_target_but_no_place_of_a_medium() -> None:
    for item in MIXED:
        pretraining = item.with_targets("all")
        text = [token for token in item.tokens.tolist()[1:] if token not in (PAD, IMAGE, AUDIO, TABLE)]
        labels = pack([pretraining, pretraining]).labels
        assert labels[labels >= 0].tolist() == text * 2
        assert pretraining.costs().target == len(text)
        assert_equal(item.with_targets("answers"), item)


def test_labels_are_the_next_token_where_it_is_a_target() -> None:
    batch = collate(MIXED)
    longest = max(len(item.tokens) for item in MIXED)
    for row, item in enumerate(MIXED):
        count = len(item.tokens)
        wanted = [
            int(item.tokens[t + 1]) if t + 1 < count and item.loss_mask[t + 1] else IGNORED for t in range(longest)
        ]
        assert batch.labels[row].tolist() == wanted
        assert batch.tokens[row].tolist() == [*item.tokens.tolist(), *[PAD] * (longest - count)]
        assert int(batch.lengths[row]) == count
    assert int((batch.labels >= 0).sum()) == sum(item.costs().target for item in MIXED)


def test_media_are_stacked_in_sample_order() -> None:
    batch = collate(MIXED)
    assert torch.equal(batch.images, torch.from_numpy(np.concatenate([MIXED[0].images, MIXED[4].images])))
    clips = [clip for item in MIXED for clip in item.audio]
    assert batch.mel_lengths.tolist() == [7, 12, 3]
    for row, clip in zip(batch.mel, clips, strict=True):
        assert np.array_equal(row[: len(clip)].numpy(), clip.astype(np.float32))
        assert not row[len(clip) :].any()
    assert batch.cell_fields.tolist() == [0, 1, 2, 0, 1]
    assert batch.cell_categories.tolist() == [*MIXED[2].cell_categories, *MIXED[4].cell_categories]


def test_a_batch_is_its_own_memory() -> None:
    """Rows from the object store are read-only; a batch must be neither read-only nor a view of them."""
    row = Encoded.from_row(MIXED[0].to_row())
    batch = collate([row])
    batch.tokens += 1
    batch.images += 1
    assert np.array_equal(row.images, MIXED[0].images)


def test_to_moves_every_part() -> None:
    moved = collate(MIXED).to("meta")
    assert isinstance(moved, Batch)
    assert {x.device.type for x in vars(moved).values() if isinstance(x, torch.Tensor)} == {"meta"}


def test_details_belong_to_the_same_cells_in_a_batch() -> None:
    batch = collate(MIXED)
    assert batch.cell_details.tolist() == [*MIXED[2].cell_details.tolist(), *MIXED[4].cell_details.tolist()]
    assert batch.cell_detail_of.tolist() == [0, 0, 1, 3, 3, 4]


def test_rows_written_before_details_and_whisper_are_read() -> None:
    row = MIXED[1].to_row()
    for name in ("audio_dtype", "cell_details", "cell_detail_of"):
        del row[name]
    assert_equal(Encoded.from_row(row), MIXED[1])


def test_whispers_features_keep_their_precision() -> None:
    original = dataclasses.replace(MIXED[1], audio=(np.array([[0.1, 0.2]], np.float32),))
    (clip,) = Encoded.from_row(original.to_row()).audio
    assert clip.dtype == np.float32 and np.array_equal(clip, original.audio[0])
