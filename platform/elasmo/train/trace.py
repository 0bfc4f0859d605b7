"""Back-tracing: from a step of a run, or from an evaluation, to the source rows behind it and the files they lie in.

The plan is a pure function, so nothing has to be recorded for this: the run's log says which receipt each committed
step has, and the plan says which rows give that receipt.
"""

from __future__ import annotations

import json
import mmap
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasmo.config import Config, load
from elasmo.data.gold import RowOrigin
from elasmo.data.gold_mixture import GoldMixture, local
from elasmo.data.lineage import Lineage, lineage
from elasmo.data.manifest import open_snapshot
from elasmo.data.stream import make_plan, open_gold
from elasmo.train.run_folder import substituted


class TraceError(ValueError):
    """A step that cannot be traced, in a sentence that says why."""


@dataclass(frozen=True)
class SourceRow:
    """A bronze row behind a sample.

    Attributes:
        name: `table/key`.
        file: bronze shard that holds it, below the lake; None when it is not found.
        row: its place in that shard.
        origin: the file of the dataset's folder that it is or lies in, where the key names one.
        sha256: of that file, as it was landed.
    """

    name: str
    file: str | None
    row: int | None
    origin: str | None
    sha256: str | None


@dataclass(frozen=True)
class TracedRow:
    """A sample of the step: its dataset, its slot (None for an evaluation), what it is, what it was made of."""

    dataset: str
    slot: int | None
    gold: RowOrigin
    sources: tuple[SourceRow, ...]


@dataclass(frozen=True)
class Trace:
    """What is behind a step or an evaluation.

    Attributes:
        event: the log's event of the step (`receipt`, `world`, `loss`, ...), or of the evaluation.
        receipt: the plan's receipt of the step; None for an evaluation.
        rows: as they were read, substitutes included, in slot order, then collating order; for an evaluation, held-out
            rows in gold order.
        lineage: the chain of snapshots of each dataset that has a row here.
    """

    event: dict[str, Any]
    receipt: str | None
    rows: tuple[TracedRow, ...]
    lineage: tuple[Lineage, ...]

    @property
    def proven(self) -> bool:
        """Whether the log's receipt says that exactly these rows were read."""
        return self.receipt is not None and self.event.get("receipt") == self.receipt


def trace_step(folder: Path, step: int) -> Trace:
    """The rows behind a committed step of the run in `folder`; steps count from 1, as in the log.

    Raises:
        TraceError: the run has not committed that step.
        GoldError, SnapshotError: a snapshot of the run is absent or damaged.
    """
    config, gold, event = _opened(folder, "step", step)
    plan = make_plan(config, gold)
    slots = plan.slots(step - 1)
    swap = substituted(event)
    rows = [(slot.slot, swap.get(row_id, row_id)) for slot in slots for row_id in slot.row_ids]
    return Trace(event, plan.receipt(step - 1, swap), *_behind(config, gold, rows))


def trace_evaluation(folder: Path, step: int) -> Trace:
    """The held-out rows behind the evaluation after a step; raises as `trace_step` does."""
    config, gold, event = _opened(folder, "eval", step)
    return Trace(event, None, *_behind(config, gold, [(None, int(row)) for row in gold.index("heldout").row_ids]))


def find_event(log: Path, kind: str, step: int) -> dict[str, Any] | None:
    """The last event of a kind and step in a run log, None without one. Parses only lines that name the step."""
    if not log.is_file() or log.stat().st_size == 0:
        return None
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = len(data)
        while (place := max(data.rfind(b'"step": %d%b' % (step, close), 0, end) for close in (b",", b"}"))) >= 0:
            start, stop = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
            try:
                event: dict[str, Any] = json.loads(data[start : stop if stop >= 0 else len(data)])
            except ValueError:  # a line that was cut off by a crash
                event = {}
            if (event.get("event"), event.get("step")) == (kind, step):
                return event
            end = start
    return None


def _opened(folder: Path, kind: str, step: int) -> tuple[Config, GoldMixture, dict[str, Any]]:
    event = find_event(folder / "log.jsonl", kind, step)
    if event is None:
        what = "committed step" if kind == "step" else "evaluation after step"
        raise TraceError(f"The log of {folder} has no {what} {step}; `elasmo report {folder}` shows which there are.")
    config = load(folder / "config.yaml", env={})
    return config, open_gold(config), event


def _behind(
    config: Config, gold: GoldMixture, rows: Iterable[tuple[int | None, int]]
) -> tuple[tuple[TracedRow, ...], tuple[Lineage, ...]]:
    lake = Path(config.data.lake)
    found: list[tuple[str, int | None, RowOrigin]] = []
    chains: dict[str, Lineage] = {}
    for slot, row_id in rows:
        source = gold.of(row_id)
        (origin,) = source.origins([local(row_id)])
        found.append((source.name, slot, replace(origin, row_id=row_id)))
        if source.name not in chains:
            chains[source.name] = lineage(lake, source.name, source.snapshot)
    places = {name: _places(lake, chain, [o for d, _, o in found if d == name]) for name, chain in chains.items()}
    traced = tuple(
        TracedRow(dataset, slot, origin, tuple(places[dataset][name] for name in origin.source))
        for dataset, slot, origin in found
    )
    return traced, tuple(chains.values())


def _places(lake: Path, chain: Lineage, origins: Iterable[RowOrigin]) -> dict[str, SourceRow]:
    """Where each bronze row lies that `origins` name."""
    keys: dict[str, set[str]] = defaultdict(set)
    for origin in origins:
        for name in origin.source:
            table, _, key = name.partition("/")
            keys[table].add(key)
    bronze = open_snapshot(lake, chain.dataset, "bronze", chain.nodes[-1].snapshot)
    found: dict[str, SourceRow] = {}
    for table, wanted in keys.items():
        places = bronze.locate(table, bronze.details["keys"][table], wanted)
        for key in wanted:
            file, row = places.get(key, (None, None))
            path = None if file is None else str((bronze.path / file).relative_to(lake))
            landed = next((name for name in (key, key.rpartition(":")[0]) if name in chain.files), None)
            found[f"{table}/{key}"] = SourceRow(f"{table}/{key}", path, row, landed, chain.files.get(landed or ""))
    return found
