"""The preview page: the very media, every fact of a row, drawn the same way each time, and nothing unescaped."""

from __future__ import annotations

import base64
import re
from html import unescape
from pathlib import Path

import pytest

from elasmo.config import Config
from elasmo.data.gold import Gold
from elasmo.data.manifest import latest, open_snapshot
from elasmo.ingest.ingest import ingest
from elasmo.ingest.preview import Page, preview, render
from elasmo.ingest.preview_cards import PreviewError, data_uri, spread
from tests.pets import good_rows, line, png, wav, write_dataset

EVIL = '<script>alert("x")</script>'


@pytest.fixture
def lake(tmp_path: Path, config: Config) -> Path:
    """The good rows, one that tries to inject markup, and three that are refused."""
    rows, media = good_rows()
    rows += [line(EVIL, {"text": EVIL}, answer=EVIL, split="train"), "{", line("x", {"image": "../../etc/passwd"})]
    media["media/24.png"] = b"broken"
    rows.append(line("y", {"image": "media/24.png"}))
    ingest(config, write_dataset(tmp_path / "pets", rows, media))
    return Path(config.data.lake)


def page(lake: Path, count: int = 12, keys: tuple[str, ...] = (), seed: int = 0) -> Page:
    return preview(lake, "pets", "gold", count, keys, seed)


def test_a_row_shows_its_media_messages_and_where_it_belongs(lake: Path) -> None:
    html = render(page(lake, keys=("row-2", "row-3", "row-20")))
    gold = Gold(open_snapshot(lake, "pets", "gold", latest(lake, "pets", "gold") or ""))
    rows = {row.key: row for row in gold.read(range(25))}
    for content, mime in ((rows["row-2"].images[0], "image/png"), (rows["row-2"].audio[0], "audio/wav")):
        assert f"data:{mime};base64,{base64.b64encode(content).decode()}" in html
    assert html.count("<article") == 3 and "pet-20" in html and "heldout" in html
    assert "<dt>coat</dt><dd>black</dd>" in html and "<dt>age</dt><dd>3</dd>" in html
    index = gold.index("train")
    costs = index.costs[index.row_ids.tolist().index(rows["row-2"].row_id)].tolist()
    assert f"decoder {costs[0]}, vision {costs[1]}, audio {costs[2]}, target" in html
    assert "images/media/2.png" in html and "rows/rows.jsonl:3" in html
    assert "answer 2" in html and "Is it a cat?" in html


def test_text_is_escaped_and_the_page_asks_nothing_of_anybody(lake: Path) -> None:
    html = render(page(lake, keys=(EVIL,)))
    assert "<script" not in html and EVIL in unescape(html)
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", html) and "url(" not in html
    assert "default-src 'none'" in html


def test_rows_are_drawn_by_the_seed_from_every_kind(lake: Path) -> None:
    first, again, other = (page(lake, 6, seed=seed) for seed in (1, 1, 2))
    assert first == again and first.cards != other.cards
    modalities = {dict(card.facts)["modality"] for card in page(lake, 9).cards}
    assert modalities == {"image", "audio", "image+audio", "table", "text"}


def test_refused_rows_are_shown_with_their_reasons(lake: Path) -> None:
    shown = page(lake)
    assert shown.refused_total == 4
    html = unescape(render(shown))
    assert "the line is not valid JSON" in html and "leaves the dataset folder" in html
    assert "images/media/24.png" in html


@pytest.mark.parametrize("layer", ["bronze", "silver"])
def test_other_layers_show_columns_and_take_the_keys_of_a_source(lake: Path, layer: str) -> None:
    shown = preview(lake, "pets", layer, 12, ("images/media/0.png", "rows.jsonl:4"), 0)  # type: ignore[arg-type]
    assert [card.title for card in shown.cards] == ["images/media/0.png", "rows/rows.jsonl:4"]
    assert shown.cards[0].turns[0].parts[0] == data_uri(png(0))
    tables = {dict(card.facts)["table"] for card in preview(lake, "pets", layer, 3, (), 0).cards}  # type: ignore[arg-type]
    assert tables == {"images", "audio", "rows"}


def test_what_cannot_be_shown_is_one_sentence(lake: Path) -> None:
    with pytest.raises(PreviewError, match="--keys names 'nobody', which is in no row of gold"):
        page(lake, keys=("row-1", "nobody"))
    with pytest.raises(PreviewError, match="has no gold of dataset 'dogs'; run `elasmo ingest`"):
        preview(lake, "dogs", "gold", 3, (), 0)
    with pytest.raises(PreviewError, match="--rows is 501; a page takes from 1 to 500 rows"):
        page(lake, 501)


def test_media_are_told_by_their_first_bytes() -> None:
    assert data_uri(wav(0)).kind == "audio" and data_uri(wav(0)).text.startswith("data:audio/wav;")
    assert data_uri(png(0)).kind == "image" and data_uri(b"RIFF....WEBPVP8 ").text.startswith("data:image/webp;")
    assert data_uri(b"<svg onload=alert(1)>").kind == data_uri(b"II*\0").kind == data_uri(b"").kind == "problem"


def test_rare_kinds_are_drawn_before_a_second_of_a_common_one() -> None:
    items = list(range(100))
    drawn = spread(items, ["rare" if item == 77 else "common" for item in items], 3, 0)
    assert 77 in drawn and len(set(drawn)) == 3
    assert sorted(spread([1, 2], ["a", "a"], 9, 0)) == [1, 2]


def test_a_row_that_reads_as_other_tokens_now_is_shown_as_such(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elasmo.data.gold import GoldRowError

    def read(self: Gold, row_ids: object) -> None:
        raise GoldRowError("row 3 reads as other tokens")

    monkeypatch.setattr(Gold, "read", read)
    shown = page(lake, 1)
    assert shown.cards[0].turns[0].parts[0].text == "row 3 reads as other tokens"
