"""The files source: what it lands, and the example in data/README.md, ingested as it is printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elasmo.config import Config
from elasmo.data.gold import Gold
from elasmo.ingest.ingest import ingest
from elasmo.sources.contract import load_contract
from elasmo.sources.files import FilesSource, inside
from tests.pets import line, png, write_dataset

README = Path(__file__).parents[2] / "data" / "README.md"


def test_the_example_in_the_readme_ingests(tmp_path: Path, config: Config) -> None:
    contract, row = re.findall(r"```(?:yaml|json)\n(.*?)```", README.read_text(), re.DOTALL)[:2]
    folder = tmp_path / "pets"
    (folder / "media").mkdir(parents=True)
    (folder / "media" / "cat-01.png").write_bytes(png(1, size=32))
    (folder / "contract.yaml").write_text(contract)
    (folder / "rows.jsonl").write_text(json.dumps(json.loads(row)) + "\n")
    result = ingest(config, folder)
    assert result.refused == ()
    (sample,) = Gold.open(config.data.lake, folder).read([0])
    assert (sample.question, sample.answer, sample.concept) == ("Which animal is this?", "a cat", "cat-01")


def test_lines_land_as_they_stand_and_media_once(tmp_path: Path) -> None:
    image = {"image": "a.png"}
    folder = write_dataset(
        tmp_path / "pets", [line("one", image), "no json", "", line("two", image)], {"a.png": png(0)}
    )
    source = FilesSource(folder, load_contract(folder))
    landed = list(source.land())
    assert [(table, row["key"]) for table, row in landed] == [
        ("images", "a.png"),
        ("rows", "rows.jsonl:1"),
        ("rows", "rows.jsonl:2"),
        ("rows", "rows.jsonl:4"),
    ]
    assert landed[2][1]["line"] == "no json"
    assert sorted(source.describe()["files"]) == ["a.png", "contract.yaml", "rows.jsonl"]


def test_a_line_without_split_or_concept_keeps_the_side_of_its_id(tmp_path: Path, config: Config) -> None:
    rows = [line(f"row-{number}", answer=str(number)) for number in range(60)]
    folder = write_dataset(tmp_path / "pets", rows[:50], {}, {"heldout_fraction": 0.3})
    sides = []
    for count in (50, 60):
        write_dataset(folder, rows[:count], {}, {"heldout_fraction": 0.3})
        ingest(config, folder)
        sides.append({row.key: row.split for row in Gold.open(config.data.lake, folder).read(range(count))})
    assert sides[0].items() <= sides[1].items()
    assert 5 < sum(side == "heldout" for side in sides[1].values()) < 30


def test_a_conversation_of_several_turns_keeps_them(tmp_path: Path, config: Config) -> None:
    talk = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye?"), ("assistant", "Bye")]
    messages = [{"role": role, "segments": [{"text": text}]} for role, text in talk]
    ingest(config, write_dataset(tmp_path / "pets", [{"id": 1, "split": "train", "messages": messages}], {}))
    (row,) = Gold.open(config.data.lake, "pets").read([0])
    assert [(m.role, m.segments[0].text) for m in row.messages] == talk  # type: ignore[union-attr]
    assert (row.question, row.answer, row.modality) == ("Bye?", "Bye", "text")
    assert row.encoded.loss_mask.sum() == len(row.encoded.tokens[row.encoded.loss_mask == 1]) > 3


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("a.png", True), ("a/b.png", True), ("a/../b.png", False), ("/a.png", False), ("..", False), ("", False)],
)
def test_a_path_stays_in_the_folder(path: str, allowed: bool) -> None:
    assert inside(path) == allowed
