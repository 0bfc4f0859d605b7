"""`elasmo forecast`: how likely the next run of each ingestion stage is to fail or to overrun, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from elasmo.config import Config
    from elasmo.stages.failure_rate import Chance
    from elasmo.stages.forecast import Limits, StageForecast
    from elasmo.stages.suggestion import Suggestion

WARNS_AT, SURELY = 0.25, 0.1
"""`elasmo ingest` warns of a stage that is so likely to go wrong, if the interval begins at the second or above."""
REASONS_SHOWN = 4


def forecast(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="Dataset folder, its name, or a lake; data.dataset when left out.",
            metavar="DATASET|LAKE",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    memory_gb: Annotated[
        float | None,
        typer.Option("--memory-gb", min=0.001, help="Memory limit in GiB; this machine's when left out."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0.001, help="Seconds that each stage may take; none when left out."),
    ] = None,
    scale: Annotated[
        float, typer.Option("--scale", min=0.001, help="Size of the next input over the last one's.")
    ] = 1.0,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Count runs with injected faults too; they are labelled.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how likely the next run of each ingestion stage is to fail or overrun, from the ledger of past ones."""
    import json
    from dataclasses import asdict

    from rich.console import Console

    from elasmo.config import load
    from elasmo.stages.forecast import Limits, telling
    from elasmo.stages.forecast import forecast as foretell
    from elasmo.stages.memory_watch import machine_bytes
    from elasmo.stages.stage_run import read_ledger
    from elasmo.stages.suggestion import suggest

    changes = list(overrides or ())
    if target is not None and "=" in str(target):  # `elasmo forecast data.lake=x`: no dataset was given
        changes.insert(0, str(target))
        target = None
    lake, names = _datasets(target, load(config_file, changes))
    limits = Limits(deadline, machine_bytes() if memory_gb is None else memory_gb * 2**30)
    trees, console = [], Console()
    for name in names:
        runs = read_ledger(lake, name)
        told = telling(runs, synthetic)
        made = foretell(runs, limits, scale, synthetic)
        advice = [
            found for stage in made for found in suggest([r for r in told if r.stage == stage.stage], stage, limits)
        ]
        trees.append(
            {
                "dataset": name,
                "limits": asdict(limits),
                "scale": scale,
                "stages": [asdict(stage) for stage in made],
                "suggestions": [asdict(found) for found in advice],
            }
        )
        if not as_json:
            _show(console, name, made, advice, limits, memory_gb is None)
    if as_json:
        print(json.dumps(trees, indent=1))


def warning(lake: Path, dataset: str) -> str | None:
    """One line where the next ingestion is likely to go wrong on this machine, else None."""
    from elasmo.measure import units
    from elasmo.stages.forecast import Limits
    from elasmo.stages.forecast import forecast as foretell
    from elasmo.stages.memory_watch import machine_bytes
    from elasmo.stages.stage_run import read_ledger

    made = foretell(read_ledger(lake, dataset), Limits(memory_bytes=machine_bytes()))
    likely = [(s.bad, s.stage) for s in made if s.bad and s.bad.value >= WARNS_AT and s.bad.low >= SURELY]
    if not likely:
        return None
    bad, stage = max(likely, key=lambda found: found[0].value)
    return (
        f"{stage} goes wrong with a chance of {units.percent(bad.value)} "
        f"({bad.reasons[0]}); see elasmo forecast {dataset}"
    )


def _datasets(target: Path | None, config: Config) -> tuple[Path, list[str]]:
    """The lake and its datasets that are meant."""
    from elasmo.data.manifest import SnapshotError
    from elasmo.sources.contract import CONTRACT_FILE
    from elasmo.stages.stage_run import datasets_of

    lake = Path(config.data.lake)
    given = target if target is not None else Path(config.data.dataset)
    if given.is_dir() and not (given / CONTRACT_FILE).is_file() and datasets_of(given):
        return given, datasets_of(given)
    name = given.resolve().name
    if name not in datasets_of(lake):
        known = ", ".join(datasets_of(lake)) or "none"
        raise SnapshotError(
            f"{lake} has no stage ledger of dataset {name!r} (it has those of: {known}); run `elasmo ingest` on its "
            "folder, or name the lake with data.lake=LAKE."
        )
    return lake, [name]


def _show(
    console: Console,
    name: str,
    made: list[StageForecast],
    advice: list[Suggestion],
    limits: Limits,
    machine: bool,
) -> None:
    from elasmo.measure import units
    from elasmo.stages.forecast import MIN_RUNS

    memory = units.UNKNOWN if limits.memory_bytes is None else units.byte_size(limits.memory_bytes)
    deadline = "no deadline" if limits.seconds is None else f"a deadline of {units.seconds(limits.seconds)} a stage"
    whose = " of this machine" if machine else ""
    console.print(f"{name}: the next run, under {memory} of memory{whose} and {deadline}", highlight=False)
    console.print(_table(made), markup=False)
    if any(stage.unknown for stage in made):
        console.print(f"  unknown: {MIN_RUNS} past runs are needed", markup=False, highlight=False)
    for stage in made:
        if stage.bad is not None and stage.bad.value >= WARNS_AT:
            label = _label(stage)
            for reason in stage.bad.reasons[:REASONS_SHOWN]:
                console.print(f"  {stage.stage}: {reason}{label}", markup=False, highlight=False, soft_wrap=True)
    for found in advice:
        label = " [synthetic evidence]" if found.synthetic else ""
        line = f"  suggestion for {found.stage}: {found.sentence} ({found.evidence}){label}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(made: list[StageForecast]) -> Table:
    from rich.table import Table

    from elasmo.measure import units

    heads = ("stage", "past runs", "goes wrong", "fails", "too slow", "too large", "time (90 %)", "memory (90 %)")
    table = Table(*heads, box=None, header_style="bold", pad_edge=False)
    for stage in made:
        if stage.unknown is not None:
            table.add_row(stage.stage, f"{stage.runs}{_label(stage)}", units.UNKNOWN)
            continue
        ranges = [
            "" if found is None else f"{say(found.expected)} ({say(found.low)} to {say(found.high)})"
            for found, say in ((stage.seconds, units.seconds), (stage.memory_bytes, units.byte_size))
        ]
        parts = [
            "" if chance is None else units.percent(chance.value)
            for chance in (stage.fails, stage.overtime, stage.overmemory)
        ]
        chances = [_chance(stage.bad), *parts]
        table.add_row(stage.stage, f"{stage.runs}{_label(stage)}", *chances, *ranges)
    return table


def _chance(chance: Chance | None) -> str:
    from elasmo.measure import units

    if chance is None:
        return ""
    value, low, high = (units.percent(end) for end in (chance.value, chance.low, chance.high))
    return f"{value} ({low} to {high})"


def _label(stage: StageForecast) -> str:
    return f" [{stage.synthetic_runs} synthetic]" if stage.synthetic_runs else ""
