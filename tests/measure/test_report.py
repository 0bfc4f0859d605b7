"""The page of a run: what its charts draw reads back to the log, and nothing in it can run or be fetched."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from elasmo.measure.report import Lineage, LineageLayer, LineageRow, render
from elasmo.measure.run_folder import read

VOID = {"meta", "link", "img", "br", "input", "line", "rect", "path"}


class Page(HTMLParser):
    """Tags with their attributes, the text, and the tags left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += " " + " ".join(data.split())

    def chart(self, title: str) -> dict[str, list[tuple[float, float]]]:
        """Name -> (x, y) values of a chart, turned back from its paths through its axes."""
        at = next(i for i, (tag, attrs) in enumerate(self.tags) if attrs.get("data-chart") == title)
        svg = self.tags[at][1]
        (left, right), (low, high) = ([float(v) for v in svg[key].split()] for key in ("data-x", "data-y"))
        forward, back = (math.log, math.exp) if svg["data-scale"] == "log" else (float, float)
        found = {}
        for tag, attrs in self.tags[at + 1 :]:
            if tag == "svg":
                break
            if "data-name" in attrs:
                found[attrs["data-name"]] = [
                    (
                        left + float(x) / 1000 * (right - left),
                        back(forward(low) + (1000 - float(y)) / 1000 * (forward(high) - forward(low))),
                    )
                    for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", attrs["d"])
                ]
        return found


@pytest.fixture
def html(run: Path) -> str:
    lineage = Lineage(
        layers=(
            LineageLayer("gold", "90ab12cd34ef5678", (("rows", "5,000"),)),
            LineageLayer("bronze", "0011223344556677"),
        ),
        rows=(LineageRow("gold 17", ("scan 3", "voice 9")),),
    )
    return render(read(run), lineage, [("Serve it", "elasmo serve serve.published='a b/published'")])


@pytest.fixture
def page(html: str) -> Page:
    return Page(html)


def test_the_loss_chart_draws_the_loss_of_each_modality(page: Page) -> None:
    lines = page.chart("Loss per modality")
    assert lines["image"] == [pytest.approx((step, 4.0 / step), rel=2e-2, abs=0.02) for step in range(1, 13)]
    assert lines["audio"] == [
        pytest.approx((step, 8.0 / step**2), rel=2e-2, abs=0.02) for step in range(1, 13) if step != 5
    ]
    assert "1 steps have a loss that is not finite" in page.text


def test_step_time_parts_stack_up_to_the_step(page: Page) -> None:
    areas = page.chart("Step time")
    assert list(areas) == ["data_wait", "compute", "communication", "other"]
    tops = [max(y for _, y in points) for points in areas.values()]
    assert tops == [pytest.approx(value, abs=2e-3) for value in (0.125, 0.625, 0.875, 1.0)]
    assert "compute 50.0 %" in page.text


def test_accuracy_and_balance_are_drawn(page: Page) -> None:
    assert page.chart("Held-out accuracy")["image"] == [pytest.approx(p, abs=1e-2) for p in ((6, 0.5), (12, 0.75))]
    balance = page.chart("Balance across ranks")["decoder"]
    assert balance == [
        pytest.approx((step, 1.25), abs=1e-2) for step in range(1, 5)
    ]  # the steps on two ranks that count


def test_the_resize_is_marked_where_the_run_was_restored(page: Page) -> None:
    marks = [attrs for tag, attrs in page.tags if tag == "line" and attrs.get("class") == "resize"]
    bands = [attrs for tag, attrs in page.tags if tag == "rect" and attrs.get("class") == "redone"]
    assert float(marks[0]["x1"]) == pytest.approx(1000 * 3 / 11, abs=0.1)
    assert float(bands[0]["width"]) == pytest.approx(1000 * 2 / 11, abs=0.1)
    assert "2 → 1 workers" in page.text


def test_the_resize_contract_is_printed(page: Page) -> None:
    for words in (
        "node died",
        "detect 2.0 s",
        "replan 3.0 s",
        "restore 4.0 s",
        "first step 1.0 s",
        "10.0 s",
        "5.0 MiB",
    ):
        assert words in page.text
    assert "start unknown" not in page.text
    assert ("td", {"class": "changed"}) in page.tags


def test_the_head_counts_what_was_redone(page: Page) -> None:
    assert "12 steps on 1 to 2 workers in 32.0 s: 1 resize, 2 steps redone." in page.text
    assert "goodput 37.5 %" in page.text  # 12 s of 32 s
    assert "image, held out 75.0 % step 12" in page.text


def test_served_examples_show_their_media(page: Page) -> None:
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    sounds = [attrs["src"] for tag, attrs in page.tags if tag == "audio"]
    assert len(images) == 1 and images[0].startswith("data:image/png;base64,iVBOR")
    assert len(sounds) == 1 and sounds[0].startswith("data:audio/wav;base64,UklGR")
    assert "image 2 of 2 right, audio 0 of 1 right, table 1 of 1 right." in page.text
    assert "✗, expected 4" in page.text and "TTFT 12 ms, TPOT 3 ms" in page.text and "amount 12.5" in page.text


def test_nothing_in_the_page_runs_or_is_fetched(page: Page, html: str) -> None:
    assert page.open == []
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<b>7</b>" not in html and "onerror" not in html
    for _, attrs in page.tags:
        assert not any(key.startswith("on") for key in attrs)
        for key in ("src", "href"):
            assert attrs.get(key, "#").startswith(("data:", "#"))
    assert "url(" not in html and "@import" not in html


def test_links_inside_the_page_lead_somewhere(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {attrs["href"][1:] for tag, attrs in page.tags if tag == "a"} <= ids


def test_lineage_versions_figures_and_commands_are_printed(page: Page) -> None:
    printed = (
        "90ab12cd34ef5678",
        "rows 5,000",
        "scan 3, voice 9",
        "ray 2.60.0",
        "receipts_match_plan true",
        "resize.steps_redone 2",
        "resize.losses 99 values",
        "elasmo serve serve.published='a b/published'",
        "steps: 12",
    )
    for words in printed:
        assert words in page.text


def test_lineage_that_is_not_known_says_why(run: Path) -> None:
    assert "Not known: the lake is gone." in Page(render(read(run), Lineage(problem="the lake is gone."))).text


def test_a_run_that_only_started_has_a_page_without_numbers(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"event": "attempt", "attempt": 1, "time": 1.0, "world": 2}\n{"eve')
    page = Page(render(read(tmp_path), Lineage()))
    assert "No step was committed." in page.text
    assert "1 line(s) cut short" in page.text
    assert [tag for tag, _ in page.tags if tag == "svg"] == []


def test_a_single_step_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"event": "step", "step": 1, "time": 1.0, "loss": 2.5}\n')
    assert Page(render(read(tmp_path), Lineage())).chart("Loss per modality")["all"] == [
        pytest.approx((1, 2.5), abs=0.01)
    ]
