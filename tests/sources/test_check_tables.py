"""A contract of tables that does not agree with itself is one sentence that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasmo.sources.contract import ContractError
from tests.sources.test_row_samples import ORIGIN, ask, write
from tests.sources.twelve import TURNS, source, twelve


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": [{"table": "cats", "turns": TURNS}]}, r"samples\.0\.table is 'cats'; tables are pets"),
        ({"samples": [{"table": "pets", "turns": TURNS}] * 2}, r"samples\.1\.key is '\{key\}', as of another sample"),
        ({"samples": [{"table": "pets", "key": "{species}", "turns": TURNS}]}, r"it must hold \{key\}, so that"),
        ({"samples": [{"table": "pets", "turns": TURNS[::-1]}]}, "must end with a user's turn and the assistant's"),
        (
            {"samples": [{"table": "pets", "turns": ask({"image": "caption"})}]},
            "it must be a column of type image: picture",
        ),
        ({"samples": [{"table": "pets", "turns": ask({"audio": "sound"})}]}, "must be a column of type audio: none"),
        (
            {"samples": [{"table": "pets", "turns": ask({"text": "{name}"})}]},
            r"holds \{name\}; a template takes key, cap",
        ),
        ({"samples": [{"table": "pets", "turns": ask({"text": "{picture}"})}]}, r"holds \{picture\}; a template takes"),
        ({"samples": [{"table": "pets", "turns": ask({"text": "{key.x}"})}]}, r"holds \{key\.x\}; a template takes"),
        ({"samples": [{"table": "pets", "turns": ask({"text": "{key:9}"})}]}, r"holds \{key\}; a template takes"),
        ({"samples": [{"table": "pets", "turns": ask({"text": "{key"})}]}, "is no template"),
        (
            {"samples": [{"table": "pets", "turns": ask({"table": {"age": "number"}})}]},
            "must give each field of `record`",
        ),
        (
            {"samples": [{"table": "pets", "turns": ask({"text": "a", "image": "b"})}]},
            "a segment is one of image, audio",
        ),
        ({"samples": []}, "a tables source needs `tables`"),
        ({"from": {}}, "a tables source needs `tables`"),
        ({"from": {"cats": ORIGIN, "pets": ORIGIN}}, r"from\.cats names no table; tables are pets"),
        ({"from": {"pets": {**ORIGIN, "rename": {"a": "b"}}}}, r"from\.pets\.rename names column 'b'"),
        ({"from": {"pets": {**ORIGIN, "rename": {"a": "key", "b": "key"}}}}, "gives two columns the same name"),
        ({"from": {"pets": {**ORIGIN, "paht": "x"}}}, r"unknown key 'from\.pets\.paht'; did you mean 'path'"),
        (
            {"from": {"pets": {"format": "xlsx", "path": "x"}}},
            r"format is 'xlsx'; give one of parquet, csv, .*, sql\.",
        ),
        ({"from": {"pets": {"format": "sql", "url": "sqlite:///x", "key": "k"}}}, "give either `table` or `query`"),
        ({"source": "files", "tables": {}}, "`from` and `samples` are for source: tables"),
    ],
)
def test_a_contract_that_does_not_agree_with_itself_is_a_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ContractError, match=sentence):
        source(write(tmp_path / "pets", twelve(), **changes))
