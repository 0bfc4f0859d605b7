"""The digits dataset: real scans unchanged, records that can be checked, speech that repeats, a split that holds."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from sklearn.datasets import load_digits

from elasmo.config import LimitsConfig
from elasmo.data.draft import Draft
from elasmo.ingest.silver_rows import heldout_by_hash
from elasmo.model.media import decode_audio
from elasmo.sources.contract import load_contract
from elasmo.sources.recipe import RecipeSource

FOLDER = Path(__file__).parents[2] / "data" / "digits"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return RecipeSource(FOLDER, load_contract(FOLDER)).module


@pytest.fixture(scope="module")
def scans(recipe: ModuleType) -> list[Any]:
    return list(recipe.handwriting.scans())


class Rows:
    """The silver layer of the whole dataset, without media: scans are real, clips are takes that nobody spoke."""

    def __init__(self, recipe: ModuleType, scans: list[Any]) -> None:
        split = {s.key: "heldout" if heldout_by_hash("scans", s.group, 0.2) else "train" for s in scans}
        speech = recipe.speech
        self.tables = {
            "scans": [{"key": s.key, "digit": s.digit, "split": split[s.key]} for s in scans],
            "records": [
                {"key": f"record-{s.row:04d}", "record": recipe.handwriting.measure(s.ink), "split": split[s.key]}
                for s in scans
            ],
            "clips": [
                {
                    "key": take.key,
                    "digit": take.digit,
                    "take": take.number,
                    "split": "heldout" if take.voice in speech.HELDOUT else "train",
                }
                for take in speech.takes()
            ],
        }

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.tables[table]


@pytest.fixture(scope="module")
def silver(recipe: ModuleType, scans: list[Any]) -> Rows:
    return Rows(recipe, scans)


@pytest.fixture(scope="module")
def drafts(recipe: ModuleType, silver: Rows) -> list[Draft]:
    return list(recipe.samples(silver))


def test_scans_are_the_uci_digits_in_order_and_their_png_gives_the_ink_back(scans: list[Any]) -> None:
    source = load_digits()
    assert [scan.digit for scan in scans] == source.target.tolist()
    for scan in scans[::50]:
        pixels = np.asarray(Image.open(io.BytesIO(scan.png())))
        assert np.array_equal(np.rint(pixels / (255 / 16)), source.images[scan.row])


def test_near_duplicates_share_a_group(recipe: ModuleType, scans: list[Any]) -> None:
    ink = np.array([scan.ink.reshape(-1) for scan in scans], dtype=np.int16)
    distance = np.abs(ink[:, None] - ink[None]).sum(axis=2)
    close = np.argwhere((distance <= recipe.handwriting.NEAR_DUPLICATE) & ~np.eye(len(scans), dtype=bool))
    assert len(close) > 0
    assert all(scans[one].group == scans[other].group for one, other in close)


def test_no_held_out_scan_has_a_near_duplicate_in_training(recipe: ModuleType, scans: list[Any]) -> None:
    heldout = np.array([heldout_by_hash("scans", scan.group, 0.2) for scan in scans])
    ink = np.array([scan.ink.reshape(-1) for scan in scans], dtype=np.int16)
    distance = np.abs(ink[heldout][:, None] - ink[~heldout][None]).sum(axis=2)
    assert distance.min() > recipe.handwriting.NEAR_DUPLICATE
    assert 0.17 < heldout.mean() < 0.23


def test_holes_are_the_background_regions_that_do_not_touch_the_border(recipe: ModuleType, scans: list[Any]) -> None:
    for scan in scans[::7]:
        inked = scan.ink >= recipe.handwriting.INK
        _, regions = ndimage.label(np.pad(~inked, 1, constant_values=True))
        assert recipe.handwriting.measure(scan.ink)["holes"] == regions - 1


def test_records_are_what_the_pixels_say(recipe: ModuleType) -> None:
    ink = np.zeros((8, 8), dtype=np.uint8)
    ink[2, 3:6] = 16
    ink[6, 5] = 3  # too faint to count as inked
    assert recipe.handwriting.measure(ink) == {
        "width": 3,
        "left_edge": 4,
        "darkest_row": 3,
        "holes": 0,
        "ink": 5.0,
        "weight": "light",
        "heavier_side": "right",
        "heavier_end": "top",
    }


def test_every_record_satisfies_the_contract(recipe: ModuleType, scans: list[Any]) -> None:
    from elasmo.sources.check import Checks

    checks = Checks(load_contract(FOLDER).record, LimitsConfig(), None)
    for scan in scans:
        record = recipe.handwriting.measure(scan.ink)
        assert checks.record_of(record) == record


def test_a_voice_speaks_the_same_bytes_every_time_and_nothing_is_said_twice(recipe: ModuleType) -> None:
    first, second = (list(recipe.speech.clips(("de", "it"), ("m1", "f3"))) for _ in range(2))
    assert first == second and len(first) == 100
    assert len({wav for _, wav in first}) == 100


def test_clips_are_short_sound_without_silence_at_either_end(recipe: ModuleType) -> None:
    for take, wav in recipe.speech.clips(("fr",), ("m8", "f1")):
        loudness = np.abs(decode_audio(wav, LimitsConfig(), recipe.speech.SAMPLE_RATE))
        assert 0.1 < len(loudness) / recipe.speech.SAMPLE_RATE < 1.5, take
        loud = np.flatnonzero(loudness > 0.02 * loudness.max())
        assert loud[0] <= 221 and loud[-1] >= len(loudness) - 442


def test_held_out_voices_are_those_of_the_contract_of_both_genders(recipe: ModuleType) -> None:
    speech = recipe.speech
    assert load_contract(FOLDER).splits["clips"].heldout == speech.HELDOUT
    assert set(speech.HELDOUT) & set(speech.MALE) and set(speech.HELDOUT) & set(speech.FEMALE)
    assert len({take.key for take in speech.takes()}) == len(speech.takes()) == 3720


def test_the_mix_of_samples_is_as_described(drafts: list[Draft], silver: Rows) -> None:
    split = {(table, row["key"]): row["split"] for table, rows in silver.tables.items() for row in rows}
    counts = Counter((draft.key.split("/")[0], {split[r.table, r.key] for r in draft.refs}.pop()) for draft in drafts)
    train = {kind: count for (kind, side), count in counts.items() if side == "train"}
    share = {kind: count / sum(train.values()) for kind, count in train.items()}
    assert share == pytest.approx({"image": 0.40, "audio": 0.35, "table": 0.15, "pair": 0.10}, abs=0.02)
    heldout = {kind: count for (kind, side), count in counts.items() if side == "heldout"}
    assert heldout == {"image": 240, "audio": 240, "table": 120, "pair": 80}
    assert len({draft.key for draft in drafts}) == len(drafts)


def test_parts_of_a_sample_are_of_one_side(drafts: list[Draft], silver: Rows) -> None:
    split = {(table, row["key"]): row["split"] for table, rows in silver.tables.items() for row in rows}
    assert all(len({split[ref.table, ref.key] for ref in draft.refs}) == 1 for draft in drafts)


def words_to_digit(recipe: ModuleType, text: str) -> int:
    """Reads a digit in any of the answer styles."""
    word = text.rstrip(".").split()[-1]
    return int(word) if word.isdigit() else recipe.questions.WORDS.index(word)


def test_every_answer_is_right(recipe: ModuleType, drafts: list[Draft], silver: Rows) -> None:
    row = {(table, row["key"]): row for table, rows in silver.tables.items() for row in rows}
    fields = {wording: name for name, wordings in recipe.questions.FIELDS.items() for wording in wordings}
    assert sum(map(len, recipe.questions.FIELDS.values())) == len(fields)  # a wording asks for one field only
    for draft in drafts:
        parts = [row[ref.table, ref.key] for ref in draft.refs]
        question, answer = draft.turns[0].segments[-1], draft.turns[1].segments[0]
        assert isinstance(question, str) and isinstance(answer, str)
        if len(parts) == 2:
            seen, heard = (part["digit"] for part in parts)
            same = "yes" if seen == heard else "no"
            assert answer == (same if question in recipe.questions.SAME else f"{seen} and {heard}")
        elif draft.refs[0].table == "records":
            assert answer == str(parts[0]["record"][fields[question]])
        else:
            assert words_to_digit(recipe, answer) == parts[0]["digit"]


def test_the_style_of_an_answer_follows_from_the_question(recipe: ModuleType, drafts: list[Draft]) -> None:
    q = recipe.questions
    for draft in drafts:
        question, answer = str(draft.turns[0].segments[-1]), str(draft.turns[1].segments[0])
        if question in q.SEE_FIGURE + q.HEAR_FIGURE:
            assert answer.isdigit()
        elif question in q.SEE_WORD + q.HEAR_WORD:
            assert answer in q.WORDS
        elif question in q.SEE_SENTENCE + q.HEAR_SENTENCE:
            assert answer.startswith(("This is a", "I hear a")) and answer.endswith(".")


def test_yes_is_as_frequent_as_no(recipe: ModuleType, drafts: list[Draft]) -> None:
    answers = Counter(str(d.turns[1].segments[0]) for d in drafts if d.turns[0].segments[-1] in recipe.questions.SAME)
    assert answers["yes"] == answers["no"] > 200


def test_the_files_to_look_at_are_what_the_recipe_lands(recipe: ModuleType, scans: list[Any]) -> None:
    sample = FOLDER / "sample"
    assert sum(path.stat().st_size for path in sample.iterdir()) < 200_000
    pictures = sorted(sample.glob("*.png"))
    for path in pictures:
        scan = scans[int(path.name[5:9])]
        assert path.read_bytes() == scan.png() and path.stem.endswith(f"is-{scan.digit}")
    records = json.loads((sample / "records.json").read_text())
    assert records == {s.key: recipe.handwriting.measure(s.ink) for s in scans if s.key in records}
    assert len(pictures) == len(records) == 5


def test_inputs_from_outside_are_hashed(recipe: ModuleType) -> None:
    inputs = recipe.inputs()
    assert list(inputs) == ["scikit-learn digits.csv.gz", "espeak-ng library and data"]
    assert all(len(sha) == 64 for sha in inputs.values())
