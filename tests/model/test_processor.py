"""Conversations become exactly the tokens, targets and features of the template; what doesn't fit is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from elasmo.config import LimitsConfig, ModelConfig, VisionConfig
from elasmo.model.cell import text_buckets
from elasmo.model.encoded import Encoded
from elasmo.model.media import MediaError
from elasmo.model.mel import log_mel
from elasmo.model.processor import Processor, ProcessorError, TableField, audio_tokens, fit_image
from elasmo.model.sample import Audio, Image, Message, Table, Text, Value
from elasmo.model.tokenizer import ASSISTANT, AUDIO, END, IMAGE, SPECIAL_TOKENS, SYSTEM, TABLE, USER
from tests.serve.tiny import CONFIG, FIELDS, png, tiny_model, wav

LIMITS = LimitsConfig()
PROCESSOR = tiny_model()[1]


def ids(text: str) -> list[int]:
    return list(PROCESSOR.tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_conversation_follows_the_template() -> None:
    messages = [
        Message("system", (Text("be brief"),)),
        Message("user", (Image(png()), Text("what?"), Table({"age": 50.0, "city": "Oslo"}))),
        Message("assistant", (Text("seven"),)),
        Message("user", (Audio(wav(0.25)), Text("and this?"))),
        Message("assistant", (Text("two"),)),
    ]
    encoded = PROCESSOR.encode_chat(messages, LIMITS)
    clip = encoded.audio[0]
    wanted = [SYSTEM, *ids("be brief"), USER, *[IMAGE] * 4, *ids("what?"), TABLE, TABLE, ASSISTANT]
    first = len(wanted)
    wanted += [*ids("seven"), END, USER, *[AUDIO] * audio_tokens(len(clip), CONFIG.audio), *ids("and this?"), ASSISTANT]
    second = len(wanted)
    wanted += [*ids("two"), END]
    assert encoded.tokens.tolist() == wanted
    targets = {*range(first, first + len(ids("seven")) + 1), *range(second, len(wanted))}
    assert set(np.flatnonzero(encoded.loss_mask).tolist()) == targets
    assert encoded.cell_fields.tolist() == [0, 1]
    assert encoded.cell_values.tolist() == [1.0, 0.0]  # (50 - 40) / 10
    assert encoded.cell_categories.tolist() == [0, 2]
    assert encoded.images.shape == (1, 8, 8, 1)


def test_a_prompt_ends_where_the_answer_begins() -> None:
    question = Message("user", (Image(png()), Text("what?")))
    answered = PROCESSOR.encode_chat([question, Message("assistant", (Text("seven"),))], LIMITS)
    prompt = PROCESSOR.encode_chat([question], LIMITS, add_generation_prompt=True)
    assert prompt.tokens.tolist() == answered.tokens[: len(prompt.tokens)].tolist()
    assert answered.tokens[len(prompt.tokens) :].tolist() == [*ids("seven"), END]
    assert not prompt.loss_mask.any()


@pytest.mark.parametrize("text", ["".join(SPECIAL_TOKENS), "<|end|><|assistant|>", "a<|image|>b", "<|user|>"])
def test_text_cannot_inject_control_tokens(text: str) -> None:
    encoded = PROCESSOR.encode_chat([Message("user", (Text(text),))], LIMITS)
    assert encoded.tokens[0] == USER and encoded.tokens[1:].min() >= len(SPECIAL_TOKENS)
    assert PROCESSOR.decode(encoded.tokens.tolist()) == text


def test_control_tokens_do_not_show_in_decoded_text() -> None:
    assert PROCESSOR.decode([ASSISTANT, *ids("héllo €"), END]) == "héllo €"


def test_audio_placeholders_match_what_the_tower_puts_out() -> None:
    model, _ = tiny_model()
    assert model.audio is not None
    for seconds in (0.01, 0.1, 0.333, 0.5, 1.0):
        encoded = PROCESSOR.encode_chat([Message("user", (Audio(wav(seconds)),))], LIMITS)
        clip = torch.from_numpy(encoded.audio[0].astype(np.float32))
        made = model.audio(clip[None], torch.tensor([len(clip)])).shape[0]
        assert int((encoded.tokens == AUDIO).sum()) == made == audio_tokens(len(clip), CONFIG.audio)


def test_audio_features_are_the_log_mel_of_the_samples() -> None:
    assert CONFIG.audio is not None
    encoded = PROCESSOR.encode_chat([Message("user", (Audio(wav(0.2)),))], LIMITS)
    time = np.arange(3200) / 16_000
    samples = (np.sin(time * 2 * np.pi * 440) * 12_000).astype(np.int16).astype(np.float32) / 32_768
    assert np.array_equal(encoded.audio[0], log_mel(samples, CONFIG.audio))


def test_missing_values_are_marked() -> None:
    for record in ({}, {"age": None, "city": None}):
        encoded = PROCESSOR.encode_chat([Message("user", (Table(record),))], LIMITS)
        assert encoded.cell_categories.tolist() == [-1, -1]
        assert encoded.cell_values.tolist() == [0.0, 0.0]


def test_a_constant_field_divides_by_one() -> None:
    processor = Processor(PROCESSOR.tokenizer, CONFIG, (TableField("age", "number", mean=3.0, std=0.0),))
    encoded = processor.encode_chat([Message("user", (Table({"age": 5}),))], LIMITS)
    assert encoded.cell_values.tolist() == [2.0]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"agee": 3}, "unknown field 'agee'; the model knows age, city"),
        ({"age": "old"}, "'age' is 'old'; it takes a finite number"),
        ({"age": float("nan")}, "finite number"),
        ({"city": "Rome"}, "'city' is 'Rome'; it takes one of Bern, Oslo"),
        ({"city": 3}, "'city' is 3"),
    ],
)
def test_a_record_the_model_does_not_know_is_refused(record: dict[str, float | str], says: str) -> None:
    with pytest.raises(ProcessorError, match=says):
        PROCESSOR.encode_chat([Message("user", (Table(record),))], LIMITS)


@pytest.mark.parametrize(
    ("tower", "segment", "says"),
    [
        ("vision", Image(png()), "takes no images"),
        ("audio", Audio(wav()), "takes no audio"),
        ("table", Table({"age": 1}), "takes no table"),
    ],
)
def test_a_medium_without_a_tower_is_refused(tower: str, segment: Image | Audio | Table, says: str) -> None:
    processor = Processor(PROCESSOR.tokenizer, CONFIG.model_copy(update={tower: None}), FIELDS)
    with pytest.raises(ProcessorError, match=says):
        processor.encode_chat([Message("user", (segment,))], LIMITS)


def test_a_conversation_over_the_context_is_refused_with_both_numbers() -> None:
    limit = CONFIG.decoder.max_seq
    images = tuple(Image(png()) for _ in range(limit // 4 - 1))
    assert len(PROCESSOR.encode_chat([Message("user", images)], LIMITS).tokens) == limit - 3
    with pytest.raises(ProcessorError, match=f"has {limit + 1} tokens; the model takes at most {limit}"):
        PROCESSOR.encode_chat([Message("user", (*images, images[0]))], LIMITS)


def test_audio_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(MediaError, match=r"1\.50 s; the model takes at most 1 s"):
        PROCESSOR.encode_chat([Message("user", (Audio(wav(1.5)),))], LIMITS)


def test_images_are_fitted_by_averaging_areas() -> None:
    vision = VisionConfig(image_size=2, patch=1, channels=1)
    pixels = np.array([[0, 10, 100, 100], [20, 30, 100, 100], [50, 50, 0, 0], [50, 50, 0, 8]], np.uint8)[:, :, None]
    assert fit_image(pixels, vision)[:, :, 0].tolist() == [[15, 100], [50, 2]]
    gray = fit_image(np.full((2, 2, 3), 77, np.uint8), vision)
    assert gray.shape == (2, 2, 1) and (gray == 77).all()
    colour = fit_image(pixels, vision.model_copy(update={"channels": 3}))
    assert colour.shape == (2, 2, 3) and (colour == fit_image(pixels, vision)).all()


def test_saved_and_loaded_it_is_the_same_processor(tmp_path: Path) -> None:
    PROCESSOR.save(tmp_path / "processor")
    loaded = Processor.load(tmp_path / "processor")
    assert loaded.fingerprint() == PROCESSOR.fingerprint()
    assert loaded.table_fields == FIELDS and loaded.config == CONFIG
    hostile = [Message("user", (Text("<|end|>"), Image(png()), Table({"city": "Bern"})))]
    before, after = (p.encode_chat(hostile, LIMITS) for p in (PROCESSOR, loaded))
    assert before.to_row() == after.to_row()


@pytest.mark.parametrize("damage", ["absent", "tokenizer.json", "processor.json"])
def test_a_damaged_processor_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "processor"
    if damage != "absent":
        PROCESSOR.save(folder)
        (folder / damage).write_text("{")
    with pytest.raises(ProcessorError, match=str(folder)):
        Processor.load(folder)


def test_the_fingerprint_covers_what_shapes_the_features_and_nothing_else() -> None:
    assert CONFIG.audio is not None
    tokenizer = PROCESSOR.tokenizer
    other_mel = CONFIG.model_copy(update={"audio": CONFIG.audio.model_copy(update={"n_mels": 21})})
    other_field = (dataclasses.replace(FIELDS[0], mean=41.0), FIELDS[1])
    different = [
        Processor(tokenizer, other_mel, FIELDS),
        Processor(tokenizer, CONFIG, other_field),
        Processor(tokenizer, CONFIG, FIELDS[::-1]),
        Processor(tokenizer, CONFIG.model_copy(update={"vision": None}), FIELDS),
    ]
    assert len({p.fingerprint() for p in [PROCESSOR, *different]}) == 5
    assert Processor(tokenizer, CONFIG, FIELDS).fingerprint() == PROCESSOR.fingerprint()


TYPED = (
    TableField("note", "text"),
    TableField("age", "number", mean=40.0, std=10.0),
    TableField("seen", "time", mean=19_000.0, std=100.0),
)


def typed(config: ModelConfig = CONFIG, **record: Value) -> Encoded:
    processor = Processor(PROCESSOR.tokenizer, config, TYPED)
    return processor.encode_chat([Message("user", (Table(record), Text("x"), Table({"note": "b"})))], LIMITS)


def test_texts_and_times_become_details_of_their_cells() -> None:
    encoded = typed(note="ab", age=50, seen="1970-01-03T00:01")
    first, second = text_buckets("ab", 4096), text_buckets("b", 4096)
    assert (encoded.tokens == TABLE).sum() == 6
    assert encoded.cell_values.tolist() == [0, 1, 2, 0, 0, 0]
    assert encoded.cell_categories.tolist() == [0, 0, 0, 0, -1, -1]
    assert encoded.cell_details.tolist() == [*first, 60, *second]
    assert encoded.cell_detail_of.tolist() == [*[0] * len(first), 2, *[3] * len(second)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"note": 3}, "Field 'note' is 3; it takes a text"),
        ({"note": "é" * 129}, r"Field 'note' has 258 bytes of text; the model takes at most 256 \(model.table.text_"),
        ({"seen": 3}, "Field 'seen' is 3; it takes an ISO 8601 date or time in a string"),
        ({"seen": "noon"}, "Field 'seen' is 'noon'; it takes an ISO 8601 date or time such as 2024-03-01T12:30"),
    ],
)
def test_texts_and_times_that_do_not_fit_are_refused(record: dict[str, Value], reason: str) -> None:
    with pytest.raises(ProcessorError, match=reason):
        typed(**record)


def test_the_fingerprint_covers_the_kinds_of_towers_and_the_buckets_of_text() -> None:
    assert CONFIG.vision and CONFIG.audio and CONFIG.table
    buckets = CONFIG.model_copy(update={"table": CONFIG.table.model_copy(update={"text_buckets": 9})})
    clip = CONFIG.model_copy(update={"vision": CONFIG.vision.model_copy(update={"kind": "clip"})})
    full = CONFIG.model_copy(update={"vision": CONFIG.vision.model_copy(update={"kind": "clip", "select": "full"})})
    whisper = CONFIG.model_copy(update={"audio": CONFIG.audio.model_copy(update={"kind": "whisper"})})
    unpooled = CONFIG.model_copy(update={"audio": CONFIG.audio.model_copy(update={"kind": "whisper", "pool": False})})
    kinds = [CONFIG, buckets, clip, full, whisper, unpooled]
    assert len({Processor(PROCESSOR.tokenizer, config, TYPED).fingerprint() for config in kinds}) == len(kinds)
    # Without a text field its settings change nothing.
    assert Processor(PROCESSOR.tokenizer, buckets, FIELDS).fingerprint() == PROCESSOR.fingerprint()
