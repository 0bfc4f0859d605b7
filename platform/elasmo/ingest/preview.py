"""Rows of a lake layer as one self-contained HTML page: pictures, sounds, records, messages, and where they come from.

The page makes no request and runs no script; every text in it is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from elasmo.data.manifest import Layer, Snapshot, latest, open_snapshot
from elasmo.ingest.preview_cards import Card, PreviewError, gold_cards, spread, table_cards
from elasmo.sources.quarantine import Refusal, read_quarantine

MOST_ROWS = 500
REFUSED_SHOWN = 8


@dataclass(frozen=True)
class Page:
    """All that the page shows."""

    dataset: str
    layer: Layer
    snapshot: str
    rows: dict[str, int]
    cards: list[Card]
    refused: list[Refusal]
    reasons: list[tuple[str, int]]
    refused_total: int


def preview(
    lake: Path, dataset: str, layer: Layer, count: int, keys: Sequence[str], seed: int, snapshot: str | None = None
) -> Page:
    """The page of `count` rows chosen by `seed`, or of the rows with these keys.

    Raises:
        PreviewError: the layer was never ingested, a key is in no row, or more than 500 rows.
        SnapshotError, GoldError: a snapshot that is absent or damaged.
    """
    if not 1 <= max(count, len(keys)) <= MOST_ROWS:
        raise PreviewError(f"--rows is {max(count, len(keys))}; a page takes from 1 to {MOST_ROWS} rows.")
    found = snapshot or latest(lake, dataset, layer)
    if found is None:
        raise PreviewError(f"{lake} has no {layer} of dataset {dataset!r}; run `elasmo ingest` on its folder first.")
    opened = open_snapshot(lake, dataset, layer, found)
    cards = gold_cards(opened, count, keys, seed) if layer == "gold" else table_cards(opened, count, keys, seed)
    refused = _refused(lake, dataset, opened)
    reasons = Counter(refusal.kind for refusal in refused)
    shown = spread(refused, [refusal.kind for refusal in refused], REFUSED_SHOWN, seed)
    tables = {name: rows for name, rows in opened.tables().items() if name != "index"}
    return Page(dataset, layer, found, tables, cards, shown, reasons.most_common(REFUSED_SHOWN), len(refused))


def render(page: Page) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("elasmo.ingest", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("preview.html.j2").render(page=page)


def _refused(lake: Path, dataset: str, snapshot: Snapshot) -> list[Refusal]:
    """What this layer and those above it sent to the quarantine, the first one's first."""
    refused = read_quarantine(lake, dataset, snapshot.details.get("quarantine"))
    for parent in snapshot.manifest["parents"]:
        refused = _refused(lake, dataset, open_snapshot(lake, dataset, parent["layer"], parent["id"])) + refused
    return refused
