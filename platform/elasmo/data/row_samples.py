"""Samples of a `tables` source: the contract's turns, filled in from each row that passed the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from elasmo.config import LimitsConfig
from elasmo.data.check import Checks
from elasmo.data.contract import Contract, ContractError, TableSpec
from elasmo.data.draft import Draft, DraftSegment, Record, Ref, Turn
from elasmo.data.origin import SampleSpec, SegmentSpec
from elasmo.data.quarantine import Refusal, RowError
from elasmo.data.source import SilverRows

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


def check_samples(where: str, contract: Contract) -> None:
    """Holds the samples against the tables they are made of.

    Raises:
        ContractError: a sample that names what is not there, or two that would have the same key.
    """
    keys = set()
    for number, sample in enumerate(contract.samples):
        at = f"{where}: samples.{number}"
        if sample.table not in contract.tables:
            raise ContractError(f"{at}.table is {sample.table!r}; tables are {', '.join(contract.tables)}.")
        spec = contract.tables[sample.table]
        key = sample.key if sample.key is not None else f"{{{spec.key}}}"
        if spec.key not in _columns(f"{at}.key", key, spec):
            raise ContractError(
                f"{at}.key is {key!r}; it must hold {{{spec.key}}}, so that no two rows share a sample's key."
            )
        if (sample.table, key) in keys:
            raise ContractError(f"{at}.key is {key!r}, as of another sample of {sample.table}; give each its own key.")
        keys.add((sample.table, key))
        roles = [turn.role for turn in sample.turns[-2:]]
        if roles != ["user", "assistant"] or any(s.text is None for s in sample.turns[-1].segments):
            raise ContractError(f"{at}.turns must end with a user's turn and the assistant's answer in text.")
        for turn in sample.turns:
            for segment in turn.segments:
                _check_segment(f"{at}.turns", segment, spec, contract)


def _check_segment(at: str, segment: SegmentSpec, spec: TableSpec, contract: Contract) -> None:
    if segment.text is not None:
        _columns(at, segment.text, spec)
        return
    if isinstance(segment.table, dict):
        unknown = [field for field in segment.table if field not in contract.record]
        absent = [column for column in segment.table.values() if column not in spec.columns]
        if unknown or absent or set(segment.table) != set(contract.record):
            raise ContractError(
                f"{at}: table is {segment.table}; it must give each field of `record` "
                f"({', '.join(contract.record) or 'none'}) one of the columns {', '.join(spec.columns)}."
            )
        return
    ((kind, column),) = segment.model_dump(exclude_none=True).items()
    wanted = "record" if kind == "table" else kind
    fit = [name for name, declared in spec.columns.items() if declared.type == wanted]
    if column not in fit:
        raise ContractError(
            f"{at}: {kind} is {column!r}; it must be a column of type {wanted}: {', '.join(fit) or 'none'}."
        )


def _columns(at: str, template: str, spec: TableSpec) -> set[str]:
    """Columns that a template names."""
    try:
        fields = [(column, form, conversion) for _, column, form, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise ContractError(f"{at}: {template!r} is no template ({error}); write {{{{ and }}}} for braces.") from None
    plain = [
        name for name, column in spec.columns.items() if column.type not in ("image", "audio", "record", "messages")
    ]
    for column, form, conversion in fields:
        if column is not None and (column not in plain or form or conversion):
            raise ContractError(
                f"{at}: {template!r} holds {{{column}}}; a template takes {', '.join(plain)} in braces."
            )
    return {column for column, _, _ in fields if column is not None}
