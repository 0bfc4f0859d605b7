"""Checks a `tables` source where it lies: files row by row, databases for the columns that they have."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from elasmo.config import LimitsConfig
from elasmo.ingest.finding import Finding
from elasmo.ingest.lint_media import media_problem
from elasmo.sources.check import Checks
from elasmo.sources.chunked_copy import Landed
from elasmo.sources.contract import CONTRACT_FILE, Contract
from elasmo.sources.origin import SqlOrigin
from elasmo.sources.quarantine import RowError
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import FAULT
from elasmo.sources.tables import MEDIA, TablesSource


def lint_tables(folder: Path, contract: Contract, limits: LimitsConfig) -> list[Finding]:
    """Findings in every table of a `tables` source; nothing is copied and no medium decoded."""
    found: list[Finding] = []
    with tempfile.TemporaryDirectory() as unused:  # where ingestion would copy databases to
        try:
            source = TablesSource(folder, contract, Path(unused))
        except ValueError as error:
            return [_of_contract(folder, error)]
        for table, origin in contract.origins.items():
            try:
                if isinstance(origin, SqlOrigin):
                    source.check_database(table)
                else:
                    found += _rows(source, table, folder, limits)
            except SourceError as error:
                found.append(_of_contract(folder, error))
    return found


def _of_contract(folder: Path, error: ValueError) -> Finding:
    text = str(error).removeprefix(f"{folder / CONTRACT_FILE}: ")
    return Finding("error", folder / CONTRACT_FILE, None, text)


def _rows(source: TablesSource, table: str, folder: Path, limits: LimitsConfig) -> Iterator[Finding]:
    spec, contract = source.tables[table], source.contract
    checks = Checks(contract.record, limits, contract.media.sample_rate)
    first: dict[str, str] = {}
    count = 0
    for place, row in source.records(table):
        count += 1
        key, problem = str(row[spec.key]), row[FAULT]
        if problem is None:
            problem = _problem(source, table, row, checks)
        if problem is None and key in first:
            problem = f"{spec.key} {key!r} is also that of {first[key]}; keys are unique, give another one"
        first.setdefault(key, place)
        if problem is not None:
            file, _, line = place.rpartition(":")
            numbered = bool(file) and line.isdigit()
            text = str(problem).removeprefix(f"{place}: ").removesuffix(".")
            yield Finding("error", folder / (file if numbered else place), int(line) if numbered else None, f"{text}.")
    if not count:
        yield Finding("error", folder / CONTRACT_FILE, None, f"from.{table} has no row; mend its path or its files.")


def _problem(source: TablesSource, table: str, row: Landed, checks: Checks) -> str | None:
    """The first value of a row that silver would refuse, media by their header."""
    for name, column in source.tables[table].columns.items():
        value = row.get(name)
        if column.type in MEDIA and isinstance(value, bytes):
            medium = io.BytesIO(value)
            problem = media_problem(column.type, medium, len(value), checks.limits, checks.sample_rate)
            if problem:
                return f"{name} {problem}"
            continue
        try:
            checks.value(name, column, value)
        except RowError as error:
            return str(error)
    return None
