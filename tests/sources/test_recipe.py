"""Recipes: loaded as a package of their own; a recipe's fault is a sentence that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elasmo.config import Config
from elasmo.data.gold import Gold
from elasmo.ingest.ingest import ingest
from elasmo.sources.contract import load_contract
from elasmo.sources.recipe import RecipeSource
from elasmo.sources.source import SourceError
from tests.pets import CONTRACT

RECIPE = """
from elasmo.data.draft import Draft, Ref, Turn
from .words import ANSWERS

def inputs():
    return {"outside": "abc"}

def land():
    for number, answer in enumerate(ANSWERS):
        yield "notes", {"key": f"n{number}", "answer": answer, "record": {"age": number}}

def samples(silver):
    for row in silver.rows("notes"):
        question = Turn("user", (Ref("notes", row["key"]), "Who?"))
        yield Draft(row["key"], (question, Turn("assistant", (row["answer"],))))
"""
TABLES = {"notes": {"columns": {"key": {"type": "string"}, "answer": {"type": "string"}, "record": {"type": "record"}}}}


def write(folder: Path, recipe: str = RECIPE) -> Path:
    folder.mkdir()
    splits = {"notes": {"concept": "key", "heldout": ["n2"]}}
    contract = {**CONTRACT, "name": folder.name, "source": "recipe", "tables": TABLES, "splits": splits}
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    (folder / "recipe.py").write_text(recipe)
    (folder / "words.py").write_text(f"ANSWERS = ['ann', 'bob', '{folder.name}']")
    return folder


def source(folder: Path) -> RecipeSource:
    return RecipeSource(folder, load_contract(folder))


def test_a_recipe_ingests_with_the_modules_beside_it(tmp_path: Path, config: Config) -> None:
    result = ingest(config, write(tmp_path / "one"))
    (heldout,) = Gold.open(config.data.lake, "one").read([2])
    assert (heldout.answer, heldout.record, result.refused) == ("one", {"age": 2, "coat": None}, ())


def test_two_recipes_do_not_see_each_others_modules(tmp_path: Path) -> None:
    rows = [list(source(write(tmp_path / name)).land())[-1][1]["answer"] for name in ("one", "two")]
    assert rows == ["one", "two"]


def test_code_contract_and_inputs_are_hashed(tmp_path: Path) -> None:
    folder = write(tmp_path / "one")
    before = source(folder).describe()
    assert sorted(before["files"]) == ["contract.yaml", "recipe.py", "words.py"]
    assert before["inputs"] == {"outside": "abc"}
    (folder / "words.py").write_text("ANSWERS = []")
    after = source(folder).describe()
    assert {name for name in before["files"] if before["files"][name] != after["files"][name]} == {"words.py"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("def inputs", "def other"), r"has no function inputs\(\); a recipe defines inputs, land, samples"),
        (("from .words import ANSWERS", "import nowhere_at_all"), "could not be loaded: ModuleNotFoundError"),
        (("for number", "1 / 0\n    for number"), r"recipe\.py: land\(\) failed: ZeroDivisionError"),
        (('yield "notes"', 'yield "letters"'), "landed a row in table 'letters'; the contract has notes"),
        (("for number", "import nowhere_at_all\n    for number"), "needs the Python package 'nowhere_at_all'"),
    ],
)
def test_a_fault_of_the_recipe_is_named(tmp_path: Path, config: Config, change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        ingest(config, write(tmp_path / "one", RECIPE.replace(*change)))
    assert not (tmp_path / "lake" / "one" / "bronze" / "latest").exists()


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "one")
    (folder / "recipe.py").unlink()
    with pytest.raises(SourceError, match=r"recipe\.py does not exist"):
        source(folder)


def test_a_row_without_a_key_or_with_a_wrong_type_is_quarantined(tmp_path: Path, config: Config) -> None:
    bad = 'yield "notes", {"key": "x", "record": 5}\n        yield "notes", {"answer": "y", "record": {"age": 1}}'
    recipe = RECIPE.replace('yield "notes",', f'{bad}\n        yield "notes",')
    refused = ingest(config, write(tmp_path / "one", recipe)).refused
    assert {refusal.reason for refusal in refused} == {"answer is missing", "key is missing"}
    assert len(refused) == 6
