"""Making gold: order, table statistics, tokenizer text, and what a sample may be made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasmo.config import Config, LimitsConfig
from elasmo.data.draft import Draft, Record, Ref, Turn
from elasmo.data.gold import Gold
from elasmo.ingest.bronze import write_bronze
from elasmo.ingest.gold_writer import write_gold
from elasmo.ingest.silver import Silver, write_silver
from elasmo.sources.contract import Contract
from elasmo.sources.quarantine import read_quarantine
from elasmo.sources.source import SilverRows
from tests.ingest.test_silver import Rows, note, photo
from tests.pets import CONTRACT


class Samples(Rows):
    """Twenty photos with a note each, and the given samples."""

    def __init__(self, drafts: list[Draft]) -> None:
        owners = ["ann" if number >= 16 else "tom" for number in range(20)]
        rows = [row for n in range(20) for row in (photo(n, owners[n]), note(n, f"p{n}", age=n))]
        super().__init__(rows)
        self._drafts = drafts

    def drafts(self, silver: SilverRows) -> Iterator[Draft]:
        yield from self._drafts


def draft(key: str, *segments: Any, answer: str = "yes", **keys: Any) -> Draft:
    return Draft(key, (Turn("user", (*segments, "Whose?")), Turn("assistant", (answer,))), **keys)


def photo_draft(number: int) -> Draft:
    return draft(f"d{number}", Ref("photos", f"p{number}"))


def make(lake: Path, config: Config, drafts: list[Draft]) -> tuple[Gold, dict[str, str]]:
    """Gold of the samples, and the reasons of the refused ones by key."""
    contract = Contract.model_validate({**CONTRACT, "modalities": ["image", "table", "image+table"]})
    source, limits = Samples(drafts), LimitsConfig()
    bronze = write_bronze(lake, contract, source, source.describe())
    silver = Silver(write_silver(lake, bronze, contract, source, limits), source)
    snapshot = write_gold(lake, silver, contract, source, config, limits)
    refused = read_quarantine(lake, "pets", snapshot.details["quarantine"])
    return Gold(snapshot), {refusal.key: refusal.reason for refusal in refused}


def test_the_order_of_gold_depends_on_keys_alone_and_mixes_neighbours(tmp_path: Path, config: Config) -> None:
    drafts = [photo_draft(number) for number in range(20)]
    one, _ = make(tmp_path / "one", config, drafts)
    two, _ = make(tmp_path / "two", config, drafts[::-1])
    assert one.snapshot == two.snapshot
    keys = [row.key for row in one.read(range(16))]
    assert sorted(keys) == sorted(f"d{n}" for n in range(16)) and keys != sorted(keys)


def test_a_sample_takes_split_and_concept_of_its_parts(tmp_path: Path, config: Config) -> None:
    gold, refused = make(tmp_path, config, [photo_draft(1), draft("pair", Ref("photos", "p17"), Ref("notes", "n18"))])
    assert not refused
    train, heldout = gold.read([0, 1])
    assert (train.split, train.concept, train.modality) == ("train", "tom", "image")
    assert (heldout.split, heldout.concept, heldout.modality) == ("heldout", "ann", "image+table")
    assert heldout.source == ["photos/p17", "notes/n18"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (draft("bad", Ref("photos", "p1"), Ref("notes", "n18")), "its parts are of both splits"),
        (draft("bad", Ref("photos", "p1"), split="heldout"), "its parts are of both splits"),
        (draft("bad", Record({"age": 1})), "neither it nor its parts are in a split"),
        (draft("bad", Ref("photos", "p77")), "photos/p77 is not in silver"),
        (draft("bad", split="train"), "its modality text is not one of the contract's"),
        (draft("d1", Ref("photos", "p2")), "another sample has the same key"),
        (Draft("bad", (Turn("user", (Ref("photos", "p2"),)),)), "ends with a user's turn and the assistant's answer"),
        (draft("bad", Record({"tail": 1}), split="train"), "tail"),
    ],
)
def test_a_sample_that_does_not_hold_together_is_refused(
    tmp_path: Path, config: Config, bad: Draft, reason: str
) -> None:
    gold, refused = make(tmp_path, config, [photo_draft(1), bad])
    assert list(refused) == [bad.key] and reason in refused[bad.key]
    assert len(gold.index("train")) + len(gold.index("heldout")) == 1


def test_table_statistics_are_those_of_training_records(tmp_path: Path, config: Config) -> None:
    gold, _ = make(tmp_path, config, [draft(f"t{n}", Ref("notes", f"n{n}")) for n in range(20)])
    age, coat = gold.processor().table_fields
    ages = np.arange(16)
    assert (age.name, age.kind) == ("age", "number")
    assert age.mean == pytest.approx(ages.mean()) and age.std == pytest.approx(ages.std())
    assert (coat.name, coat.categories) == ("coat", ("black", "white"))


def test_the_tokenizer_never_sees_held_out_text(tmp_path: Path, config: Config) -> None:
    secret = "xylophone" * 5
    train = [photo_draft(number) for number in range(4)]
    seen, _ = make(tmp_path / "a", config, [*train, draft("s", Ref("photos", "p5"), answer=secret)])
    unseen, _ = make(tmp_path / "b", config, [*train, draft("s", Ref("photos", "p18"), answer=secret)])
    merged = max(int(tokens) for tokens in seen.index("train").target_tokens)
    (spelled,) = unseen.index("heldout").target_tokens
    assert merged < 10 < len(secret) <= spelled
