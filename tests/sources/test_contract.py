"""The dataset contract: what is refused, in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elasmo.config import LimitsConfig
from elasmo.sources.contract import ContractError, Media, load_contract
from tests.pets import CONTRACT

DIGITS = Path(__file__).parents[2] / "data" / "digits"


def write(folder: Path, changes: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "contract.yaml").write_text(yaml.safe_dump({**CONTRACT, "name": folder.name, **changes}))
    return folder


def test_the_digits_contract_names_licence_and_origin_of_every_part() -> None:
    contract = load_contract(DIGITS)
    assert {licence.part: licence.kind for licence in contract.licences} == {
        "scans": "real",
        "records": "measured",
        "clips": "synthetic",
    }
    assert set(contract.tables) == {licence.part for licence in contract.licences}


def test_a_folder_without_contract_is_refused_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"has no contract\.yaml; write one"):
        load_contract(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        load_contract(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"modalitys": ["text"]}, "unknown key 'modalitys'; did you mean 'modalities'"),
        ({"name": "other"}, "name is 'other' but the folder is 'pets'"),
        ({"source": "http"}, "source is 'http'"),
        ({"modalities": ["video"]}, "modalities.0 is 'video'"),
        ({"record": {"age": {"type": "number", "min": 3, "max": 1}}}, r"min=3.0 is above max=1.0"),
        ({"record": {"coat": {"type": "category"}}}, "a category needs `categories`"),
        ({"record": {"note": {"type": "text", "max": 9}}}, "a text takes nullable and description, not min, max"),
        ({"record": {"seen": {"type": "time", "categories": ["a"]}}}, "a time takes nullable and description"),
        ({"licences": []}, "licences is"),
        ({"source": "recipe"}, "a recipe source needs `tables`"),
        ({"splits": {"rows": {"concept": "id"}}}, "a files source has built-in tables"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ContractError, match=sentence):
        load_contract(write(tmp_path / "pets", changes))


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ({"ghosts": {"concept": "key"}}, "names a table that is not in `tables`"),
        ({"photos": {"concept": "owner"}}, "names column 'owner', which tables.photos does not declare"),
        ({"photos": {"follows": "key", "of": "ghosts"}}, "is 'ghosts', which is not in `tables`"),
        ({"photos": {"follows": "key"}}, "come together"),
        ({"photos": {}}, "give either `concept`"),
    ],
)
def test_a_split_rule_names_tables_and_columns_that_exist(
    tmp_path: Path, splits: dict[str, Any], sentence: str
) -> None:
    tables = {"photos": {"columns": {"key": {"type": "string"}, "png": {"type": "image"}}}}
    with pytest.raises(ContractError, match=sentence):
        load_contract(write(tmp_path / "pets", {"source": "recipe", "tables": tables, "splits": splits}))


def test_bad_yaml_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text("name: [")
    with pytest.raises(ContractError, match=r"contract\.yaml(:\d+)? is not valid YAML"):
        load_contract(tmp_path)


def test_the_stricter_limit_holds_key_by_key() -> None:
    platform = LimitsConfig(image_pixels=100, audio_s=5.0)
    limits = Media(image_pixels=1000, audio_s=2.0).limits(platform)
    assert (limits.image_pixels, limits.audio_s, limits.audio_bytes) == (100, 2.0, platform.audio_bytes)
