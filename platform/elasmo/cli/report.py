"""`elasmo report RUN`: the run as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasmo.cli.options import ConfigFile

if TYPE_CHECKING:
    from elasmo.data.gold import Gold
    from elasmo.data.lineage import Lineage as Chain
    from elasmo.measure.report import Lineage, LineageLayer, LineageRow
    from elasmo.measure.run_folder import RunFolder

ROWS_OF_EACH_MODALITY = 2


def report(
    run: Annotated[str, typer.Argument(help="The run's folder, or its id below train.storage.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Page to write; report.html of the run by default.")
    ] = None,
    config_file: ConfigFile = None,
) -> None:
    """Write a run's report, one HTML page."""
    from elasmo.config import load
    from elasmo.measure.run_folder import find

    typer.echo(write(find(run, Path(load(config_file).train.storage)), out))


def write(run: Path, out: Path | None = None) -> Path:
    """Renders the run folder `run` to `out`, its report.html by default, and returns the path written."""
    from elasmo.measure.report import render
    from elasmo.measure.run_folder import read

    folder = read(run)
    page = render(folder, lineage_of(folder), commands(folder))
    path = out or run / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def commands(folder: RunFolder) -> list[tuple[str, str]]:
    """What to do next with a run: (what it does, command line) pairs that work as they stand."""
    import shlex

    path = shlex.quote(str(folder.path))
    published = shlex.quote(str(folder.path / "published"))
    serve = (
        "Serve it with the OpenAI API on http://127.0.0.1:8000",
        f"elasmo serve ray.address=local serve.published={published}",
    )
    publish = ("Publish its best checkpoint", f"elasmo publish {path}")
    lines = [serve] if folder.published else [publish, serve]
    lines.append(("Ask it, in another terminal", 'elasmo chat "Which digit is this?" --image digit.png'))
    if folder.tensorboard:
        lines.append(("See its curves in TensorBoard", f"tensorboard --logdir {path}/tensorboard"))
    lines.append(("Write this page again", f"elasmo report {path}"))
    return lines


def lineage_of(folder: RunFolder) -> Lineage:
    """The chain of snapshots that the run's gold was made from, read from the lake that run.json names."""
    from elasmo.data.gold import Gold, GoldError
    from elasmo.data.lineage import lineage
    from elasmo.data.manifest import SnapshotError
    from elasmo.measure.report import Lineage

    named = folder.run.get("gold") or {}
    sources = named.get("sources") or ([named] if all(named.get(key) for key in ("dataset", "snapshot")) else [])
    if not sources or not named.get("lake"):
        return Lineage()
    layers: list[LineageLayer] = []
    rows: tuple[LineageRow, ...] = ()
    try:
        for source in sources:
            layers += _layers(lineage(named["lake"], source["dataset"], source["snapshot"]))
            rows += _rows(Gold.open(named["lake"], source["dataset"], source["snapshot"]))
    except (SnapshotError, GoldError) as error:
        return Lineage(problem=str(error))
    return Lineage(tuple(layers), rows)


def _layers(chain: Chain) -> list[LineageLayer]:
    from elasmo.measure import units
    from elasmo.measure.report import LineageLayer

    layers = []
    for node in chain.nodes:
        facts = [(table, f"{rows:,} rows") for table, rows in node.rows.items()]
        facts += [("size", units.byte_size(node.bytes)), ("refused rows", str(node.refused)), ("written", node.created)]
        layers.append(LineageLayer(node.layer, node.snapshot, tuple(facts)))
    licences = [(str(part["part"]), f"{part['kind']}, {part['licence']}") for part in chain.licences]
    files = [(name, digest[:12]) for name, digest in {**chain.files, **chain.inputs}.items()]
    return [*layers, LineageLayer("source", chain.dataset, (*licences, *files))]


def _rows(gold: Gold) -> tuple[LineageRow, ...]:
    """A few held-out rows of each modality with the bronze rows they were made of."""
    from elasmo.measure.report import LineageRow

    index = gold.index("heldout")
    chosen: list[int] = []
    for code in range(len(index.modalities)):
        chosen += [int(row) for row in index.row_ids[index.modality == code][:ROWS_OF_EACH_MODALITY]]
    return tuple(LineageRow(f"{row.row_id} ({row.modality})", tuple(row.source)) for row in gold.read(chosen))
