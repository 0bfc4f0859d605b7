"""Lint: every fault is found at its file and line without ingesting, and a sound folder is passed in silence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasmo.config import Config, LimitsConfig
from elasmo.ingest.ingest import ingest
from elasmo.ingest.lint import lint
from elasmo.sources.contract import ContractError
from tests.pets import good_rows, line, png, wav, write_dataset
from tests.sources.test_recipe import write as write_recipe

DATA = Path(__file__).parents[2] / "data"


def told(folder: Path) -> list[str]:
    return [str(finding).removeprefix(f"{folder}/") for finding in lint(folder, LimitsConfig())]


def with_bad(tmp_path: Path, *bad: dict[str, Any] | str, media: dict[str, bytes] | None = None) -> Path:
    """The good rows, then these from line 25 on."""
    rows, good = good_rows()
    return write_dataset(tmp_path / "pets", [*rows, *bad], {**good, **(media or {})})


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(DATA.glob("*/contract.yaml"))])
def test_the_datasets_of_the_repository_have_no_fault(name: str) -> None:
    assert lint(DATA / name, LimitsConfig()) == []


def test_a_folder_that_ingests_whole_has_no_fault(pets: Path, config: Config) -> None:
    assert lint(pets, config.data.limits) == []
    assert ingest(config, pets).refused == ()


CASES: list[tuple[list[dict[str, Any] | str], str]] = [
    (["{"], "rows.jsonl:25: error: the line is not valid JSON"),
    (["[1]"], "rows.jsonl:25: error: the line holds a list; it must hold an object"),
    ([line("a", color="red")], "rows.jsonl:25: error: unknown key 'color'; a line takes id, split, concept, messages"),
    ([line("a", split="test")], "rows.jsonl:25: error: split is 'test'; it must be one of train, heldout"),
    ([line("a", {"table": {"age": 99}})], "rows.jsonl:25: error: record field age is 99; it must be at least 0 and at"),
    ([line("a", {"table": {"size": 1}})], "rows.jsonl:25: error: record field 'size' is unknown; fields are age, coat"),
    ([line("a", {"table": {"age": 1}}, {"audio": "media/1.wav"})], "its modality audio+table is not one of"),
    ([line("a", {"image": "no.png"})], "rows.jsonl:25: error: image no.png does not exist beside rows.jsonl; add"),
    ([line("row-3")], "rows.jsonl:25: error: id 'row-3' is also the id of line 4; ids are unique"),
    ([line("a"), line("b")], "rows.jsonl:26: warning: its messages are those of line 25; exact duplicates are kept"),
    ([line("a", split="train", concept="pet-20")], "concept 'pet-20' is train here and held out in line 21; it would"),
    (
        [line("a", {"image": "media/20.png"}, split="train")],
        "rows.jsonl:25: error: an image or sound of it is, byte for byte, in held-out line 21",
    ),
]


@pytest.mark.parametrize(("bad", "sentence"), CASES, ids=[sentence for _, sentence in CASES])
def test_a_bad_line_is_named(tmp_path: Path, bad: list[dict[str, Any] | str], sentence: str) -> None:
    (finding,) = told(with_bad(tmp_path, *bad))
    assert sentence in finding


@pytest.mark.parametrize("case", CASES, ids=[sentence for _, sentence in CASES])
def test_what_lint_finds_is_what_ingestion_refuses(
    tmp_path: Path, config: Config, case: tuple[list[dict[str, Any] | str], str]
) -> None:
    assert ingest(config, with_bad(tmp_path, *case[0])).refused


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.png",
            png(1, size=65),
            "media/a.png: error: has 65x65 pixels; at most 4096 are allowed (media.image_pixels)",
        ),
        ("a.png", b"no picture", "media/a.png: error: is no image that is read here; give PNG"),
        ("a.wav", wav(1, rate=8_000), "has a sample rate of 8000 Hz; media.sample_rate is 22050, convert one of them"),
        ("a.wav", wav(1, seconds=1.5), "lasts 1.50 s; at most 1 s are allowed (media.audio_s)"),
        ("a.wav", wav(1, seconds=0.0), "holds no samples"),
        ("a.wav", b"no sound", "is no sound that is read here"),
    ],
)
def test_media_are_checked_by_their_header(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    kind = "image" if name.endswith("png") else "audio"
    (finding,) = told(with_bad(tmp_path, line("a", {kind: f"media/{name}"}), media={f"media/{name}": content}))
    assert sentence in finding and finding.endswith("(named in rows.jsonl:25)")


def test_files_that_no_line_names_are_warnings(tmp_path: Path) -> None:
    folder = with_bad(tmp_path, media={"media/left.png": png(3), "README.md": b"about", ".hidden/x": b"y"})
    assert told(folder) == ["media/left.png: warning: is named by no line of rows.jsonl; it is not ingested."]


def test_an_empty_side_is_told(tmp_path: Path) -> None:
    for split, level in (("train", "warning: holds no row out"), ("heldout", "error: leaves no training row")):
        folder = write_dataset(tmp_path / split, [line("a", split=split)], {})
        assert any(level in finding for finding in told(folder))


def test_faults_of_a_contract_have_their_line(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    text = "name: pets\ntitle: Pets\nsource: files\nlicences:\n  - {part: all, kind: real, licence: X}\n"
    text += "modalities: [text]\nmedia:\n  sample_rat: 1\n  audio_s: long\ntitle: Again\n"
    (folder / "contract.yaml").write_text(text)
    assert told(folder) == [
        "contract.yaml:5: error: licences.0.origin is missing; add it.",
        "contract.yaml:8: error: unknown key 'media.sample_rat'; did you mean 'sample_rate'?",
        "contract.yaml:9: error: media.audio_s is 'long': input should be a valid number, unable to parse string as a "
        "number.",
        "contract.yaml:10: error: key 'title' is given twice; the first is lost, remove one.",
    ]
    (folder / "contract.yaml").write_text("name: pets\ntitle: [\n")
    assert told(folder) == [
        "contract.yaml:3: error: not valid YAML: expected the node content, but found '<stream end>'."
    ]
    (folder / "contract.yaml").write_text("- a\n")
    assert "holds a list; it must hold keys" in told(folder)[0]


def test_no_folder_and_no_contract_are_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        lint(tmp_path / "nowhere", LimitsConfig())
    with pytest.raises(ContractError, match=r"has no contract\.yaml"):
        lint(tmp_path, LimitsConfig())


def test_a_recipe_is_read_and_never_run(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path / "one")
    assert told(folder) == []
    recipe = (folder / "recipe.py").read_text()
    (folder / "recipe.py").write_text("raise SystemExit(3)\n" + recipe)
    assert told(folder) == []
    (folder / "recipe.py").write_text(recipe.replace('"answer": answer, ', '"reply": answer, '))
    assert told(folder) == [
        "recipe.py:10: error: column 'reply' of table notes is not declared; it would be dropped.",
        "recipe.py:10: error: column 'answer' of table notes is not landed, and may not be missing.",
    ]
    (folder / "recipe.py").write_text(
        recipe.replace('yield "notes"', 'yield "nots"').replace("def inputs", "def input")
    )
    assert told(folder) == [
        "recipe.py: error: has no function inputs(); a recipe defines inputs, land, samples.",
        "recipe.py:10: error: lands a row in table 'nots'; the contract has notes.",
    ]
    (folder / "recipe.py").write_text("def land(:\n")
    assert told(folder) == ["recipe.py:1: error: is not valid Python: invalid syntax."]
    (folder / "recipe.py").unlink()
    assert told(folder) == ["recipe.py: error: does not exist; the contract's `recipe` must name a file beside it."]


def test_splits_that_follow_each_other_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "digits", tmp_path / "digits")
    tree = yaml.safe_load((folder / "contract.yaml").read_text())
    tree["splits"]["scans"] = {"follows": "key", "of": "records"}
    (folder / "contract.yaml").write_text(yaml.safe_dump(tree))
    assert any("follow each other in a circle" in finding for finding in told(folder))
