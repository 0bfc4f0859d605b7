"""`elasmo preview DATASET`: rows of the lake as one HTML page to look at and listen to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides


class PreviewLayer(StrEnum):
    """Layers that hold rows."""

    bronze = "bronze"
    silver = "silver"
    gold = "gold"


def preview(
    dataset: Annotated[Path, typer.Argument(help="Dataset folder or name, as it was ingested.")],
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Rows to show, drawn from every modality.")] = 12,
    keys: Annotated[str | None, typer.Option("--keys", help="Rows to show instead, by key, comma between.")] = None,
    layer: Annotated[PreviewLayer, typer.Option("--layer", help="Layer to read.")] = PreviewLayer.gold,
    seed: Annotated[int, typer.Option("--seed", help="Another seed draws other rows.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("preview.html"),
    config_file: ConfigFile = None,
) -> None:
    """Write rows of an ingested dataset, and some that were refused, as one HTML page."""
    from elasmo.config import load
    from elasmo.ingest.preview import preview as make
    from elasmo.ingest.preview import render

    config = load(config_file, list(overrides or ()))
    name = dataset.resolve().name if str(dataset) in (".", "..") else dataset.name
    chosen = [key.strip() for key in (keys or "").split(",") if key.strip()]
    snapshot = config.data.gold if layer is PreviewLayer.gold else None
    page = make(Path(config.data.lake), name, layer.value, rows, chosen, seed, snapshot)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(page), encoding="utf-8")
    typer.echo(out)
