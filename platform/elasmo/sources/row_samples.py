"""Samples of a `tables` source: the contract's turns, filled in from each row that passed the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from elasmo.config import LimitsConfig
from elasmo.data.draft import Draft, DraftSegment, Record, Ref, Turn
from elasmo.sources.check import Checks
from elasmo.sources.contract import Contract, TableSpec
from elasmo.sources.origin import SampleSpec, SegmentSpec
from elasmo.sources.quarantine import Refusal, RowError
from elasmo.sources.source import SilverRows

SAMPLES = "samples"


def drafts(contract: Contract, silver: SilverRows) -> Iterator[Draft | Refusal]:
    """A draft per row of each sample's table; a row that lacks what its turns need is refused."""
    checks = Checks(contract.record, LimitsConfig(), contract.media.sample_rate)
    for sample in contract.samples:
        spec = contract.tables[sample.table]
        for row in silver.rows(sample.table):
            try:
                yield _draft(sample, spec, row, checks)
            except RowError as error:
                yield Refusal("gold", SAMPLES, str(Ref(sample.table, row[spec.key])), str(error))


def _draft(sample: SampleSpec, spec: TableSpec, row: Mapping[str, Any], checks: Checks) -> Draft:
    own = Ref(sample.table, row[spec.key])
    turns = tuple(Turn(turn.role, tuple(_segment(s, own, row, checks) for s in turn.segments)) for turn in sample.turns)
    key = own.key if sample.key is None else fill(sample.key, row)
    return Draft(key, turns, row["split"], row["concept"], own)


def _segment(segment: SegmentSpec, own: Ref, row: Mapping[str, Any], checks: Checks) -> DraftSegment:
    if segment.text is not None:
        return fill(segment.text, row)
    if isinstance(segment.table, dict):
        return Record(checks.record_of({field: row[column] for field, column in segment.table.items()}))
    return Ref(own.table, own.key, segment.image or segment.audio or segment.table)


def fill(template: str, row: Mapping[str, Any]) -> str:
    """The template with each {column} replaced by the row's value; {{ and }} are braces.

    Raises:
        RowError: the row has no value in such a column.
    """
    parts = []
    for text, column, _, _ in Formatter().parse(template):
        parts.append(text)
        if column is not None:
            if row[column] is None:
                raise RowError(f"{template!r} needs {column}, of which the row has no value")
            parts.append(str(row[column]))
    return "".join(parts)
