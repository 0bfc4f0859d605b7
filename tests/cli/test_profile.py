"""`elasmo profile`: the table it prints, the page it writes; `elasmo ingest` at the gate."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasmo.cli.main import app, mistake
from elasmo.data.manifest import SnapshotError
from elasmo.ingest.gate import GateError
from tests.ingest.test_gate_keeper import farm
from tests.pets import good_rows, write_dataset


class Page(HTMLParser):
    """Text, tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", [], []  # type: ignore[var-annotated]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.fixture
def lake(tmp_path: Path) -> str:
    folder = write_dataset(tmp_path / "pets", *good_rows())
    option = f"data.lake={tmp_path / 'lake'}"
    assert CliRunner().invoke(app, ["ingest", str(folder), option, "data.vocab_size=300"]).exit_code == 0
    return option


def test_it_prints_every_column_and_the_verdict(lake: str) -> None:
    told = CliRunner().invoke(app, ["profile", "some/where/pets", lake]).stdout
    assert re.search(r"^silver [0-9a-f]{16} of pets$", told, re.MULTILINE)
    assert re.search(r"^data +0.0 % +12 +width +8 +8 +8 +8 +PNG 100 %", told, re.MULTILINE)
    assert re.search(r"seconds +0.2 +0.2 +0.2 +0.2", told) and "WAV 100 %" in told
    assert "split mix: heldout 16.7 %, train 83.3 %" in told
    assert "label mix: answer 0 33.3 %, answer 1 33.3 %, answer 2 33.3 %" in told
    assert "gate: pass against the contract alone" in told


@pytest.mark.parametrize("layer", ["bronze", "silver", "gold"])
def test_the_page_holds_the_facts_and_needs_no_other_file(lake: str, tmp_path: Path, layer: str) -> None:
    path = tmp_path / "pages" / "pets.html"
    done = CliRunner().invoke(app, ["profile", "pets", lake, "--layer", layer, "--html", str(path)])
    assert done.exit_code == 0, done.output
    page = Page(path.read_text())
    assert page.open == []
    assert not [attrs for _, attrs in page.tags if attrs.keys() & {"src", "href", "srcset", "onclick"}]
    assert "url(" not in path.read_text() and "@import" not in path.read_text()
    assert "prefers-color-scheme: dark" in path.read_text() and "width=device-width" in path.read_text()
    assert [tag for tag, _ in page.tags].count("svg") > 3
    text = " ".join(page.text.split())
    assert f"pets · {layer}" in text
    if layer == "silver":
        assert "images 12 rows" in text and "heldout 4 (16.7 %)" in text and "Verdict pass" in text
        assert "width always 8" in text


def test_names_from_the_data_are_text_on_the_page(tmp_path: Path) -> None:
    folder = farm(tmp_path / "pets", label="<script>alert(1)</script>")
    option, page = f"data.lake={tmp_path / 'lake'}", tmp_path / "page.html"
    assert CliRunner().invoke(app, ["ingest", str(folder), option, "data.vocab_size=300"]).exit_code == 0
    assert CliRunner().invoke(app, ["profile", "pets", option, "--html", str(page)]).exit_code == 0
    assert "<script" not in page.read_text() and "&lt;script&gt;" in page.read_text()


def test_a_dataset_that_was_never_ingested_is_one_sentence(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["profile", "pets", f"data.lake={tmp_path}"]).exception
    assert isinstance(error, SnapshotError) and "has no silver snapshot of dataset 'pets'" in str(mistake(error))


def test_a_blocked_ingest_says_why_and_accept_lets_it_pass(tmp_path: Path) -> None:
    arguments = ["ingest", str(tmp_path / "pets"), f"data.lake={tmp_path / 'lake'}", "data.vocab_size=300"]
    farm(tmp_path / "pets")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    farm(tmp_path / "pets", label="answer 1")
    blocked = CliRunner().invoke(app, arguments)
    assert isinstance(blocked.exception, GateError)
    assert "rows.messages.answer drifted" in str(mistake(blocked.exception)) and "gold " not in blocked.stdout
    accepted = CliRunner().invoke(app, [*arguments, "--accept"])
    assert accepted.exit_code == 0 and "rows.messages.answer drifted" in accepted.stdout
    assert (
        re.search(r"^accepted \d{4}-\d\d-\d\dT", accepted.stdout, re.MULTILINE) and "next   elasmo" in accepted.stdout
    )
    shown = CliRunner().invoke(app, ["profile", "pets", arguments[2]]).stdout
    assert "gate: block against snapshot" in shown and ", accepted 20" in shown.replace("\n", " ")
