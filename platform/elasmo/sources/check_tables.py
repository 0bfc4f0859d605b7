"""Whether the contract of a `tables` source agrees with itself: every table has an origin, every name a column."""

from __future__ import annotations

from string import Formatter

from elasmo.sources.contract import Contract, ContractError, TableSpec
from elasmo.sources.origin import SegmentSpec
from elasmo.sources.source_row import FAULT


def check_tables(where: str, contract: Contract) -> None:
    """Holds origins and samples against the declared tables; `where` is the contract's file.

    Raises:
        ContractError: a sentence on the first thing that does not agree.
    """
    _check_origins(where, contract)
    _check_samples(where, contract)


def _check_origins(where: str, contract: Contract) -> None:
    """Refuses a table without an origin, an origin without a table, and a name that no column has."""
    tables, origins = contract.tables, contract.origins
    for table in tables:
        if table not in origins:
            raise ContractError(f"{where}: from.{table} is missing; it must say where table {table!r} lands from.")
    for table, origin in origins.items():
        if table not in tables:
            raise ContractError(f"{where}: from.{table} names no table; tables are {', '.join(tables)}.")
        columns = tables[table].columns
        unknown = [ours for ours in origin.rename.values() if ours not in columns]
        if unknown or len(set(origin.rename.values())) < len(origin.rename):
            what = f"names column {unknown[0]!r}" if unknown else "gives two columns the same name"
            raise ContractError(
                f"{where}: from.{table}.rename {what}; each must be another one of {', '.join(columns)}."
            )
        if FAULT in columns:
            raise ContractError(
                f"{where}: tables.{table} declares {FAULT!r}, which ingestion keeps for itself; rename it."
            )


def _check_samples(where: str, contract: Contract) -> None:
    """Refuses a sample that names what is not there, and two that would have the same key."""
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
        if roles != ["user", "assistant"]:
            raise ContractError(f"{at}.turns must end with a user's turn and the assistant's answer.")
        for turn in sample.turns:
            if turn.role == "assistant" and any(segment.text is None for segment in turn.segments):
                raise ContractError(
                    f"{at}.turns: an assistant's turn takes text segments only; move the rest to a user's."
                )
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
