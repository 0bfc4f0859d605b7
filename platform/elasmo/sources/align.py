"""Schema alignment: which columns of a source are those that a contract declares, with a score and its evidence.

A proposal is a proposal: it is applied when someone accepts it, and then stands in the contract as `rename`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz
from ruamel.yaml import YAML

from elasmo.sources.check import Checks
from elasmo.sources.contract import CONTRACT_FILE, Column, TableSpec
from elasmo.sources.quarantine import RowError

NAME, VALUES = 0.45, 0.55
"""Shares of the score of names that are alike, and of values that fit."""
UNTOLD = 0.5
"""What a fit is worth that says nothing: any value is a string."""
KEY_WORDS = {"id", "key", "uuid", "guid", "identifier", "pk"}
KEY_ALIKE = 0.8
"""How alike a key's name and one with such a word are."""
LEAST = 0.5
"""Score below which a column is left without a proposal."""
MEDIA_NAMES = {
    "image": re.compile(r"\.(png|jpe?g|webp|bmp|gif|tiff?)$", re.IGNORECASE),
    "audio": re.compile(r"\.(wav|flac|ogg|mp3|aiff?)$", re.IGNORECASE),
}


@dataclass(frozen=True)
class Match:
    """A declared column and the source column that it may be.

    Attributes:
        column: the contract's.
        source: the source's; None where no column is likely.
        score: 0 to 1.
        evidence: what speaks for it, a clause each.
        named: whether the contract says so already, by the same name or by `rename`.
    """

    column: str
    source: str | None
    score: float
    evidence: tuple[str, ...] = ()
    named: bool = False


def propose(
    spec: TableSpec, checks: Checks, rows: Sequence[Mapping[str, Any]], rename: Mapping[str, str] | None = None
) -> list[Match]:
    """A match for every declared column, from some rows of the source as it has them.

    A column that is named already keeps its name. The others are given source columns by falling score, each once.

    Args:
        spec: the declared table.
        checks: what a declared column's values must pass.
        rows: source column -> value.
        rename: the source's column -> the contract's, as the contract has it now.
    """
    values = {name: [row[name] for row in rows if row.get(name) is not None] for row in rows for name in row}
    said = {ours: theirs for theirs, ours in (rename or {}).items() if theirs in values}
    named = {name: said.get(name, name) for name in spec.columns if said.get(name, name) in values}
    free = [name for name in values if name not in named.values()]
    scored = [
        _score(name, column, other, values[other], len(rows), checks, unique=name == spec.key)
        for name, column in spec.columns.items()
        for other in free
        if name not in named
    ]
    best: dict[str, Match] = {}
    taken: set[str | None] = set()
    for match in sorted(scored, key=lambda match: (-match.score, match.column, match.source)):
        if match.score >= LEAST and match.column not in best and match.source not in taken:
            best[match.column] = match
            taken.add(match.source)
    found = []
    for name, column in spec.columns.items():
        if name in named:
            other = named[name]
            match = _score(name, column, other, values[other], len(rows), checks, unique=name == spec.key)
            found.append(Match(name, other, match.score, match.evidence, named=True))
        else:
            found.append(best.get(name, Match(name, None, 0.0)))
    return found


def accept(folder: Path, table: str, matches: Sequence[Match]) -> int:
    """Writes the matches into the contract as `from.<table>.rename`, its comments kept; returns how many were new."""
    fresh = {match.source: match.column for match in matches if match.source is not None and not match.named}
    if not fresh:
        return 0
    path = folder / CONTRACT_FILE
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    tree = yaml.load(path.read_text(encoding="utf-8"))
    tree["from"][table].setdefault("rename", {}).update(fresh)
    partial = path.with_name(f".{path.name}")
    with partial.open("w", encoding="utf-8") as file:
        yaml.dump(tree, file)
    partial.replace(path)
    return len(fresh)


def _score(
    name: str, column: Column, other: str, values: Sequence[Any], rows: int, checks: Checks, unique: bool
) -> Match:
    alike = fuzz.token_sort_ratio(words(name), words(other)) / 100
    if unique and KEY_WORDS & set(words(other).split()):
        alike = max(alike, KEY_ALIKE)
    fit, clause = _fit(name, column, values, checks)
    evidence = [f"names {alike:.0%} alike", clause]
    if unique:
        distinct = len({str(value) for value in values}) / max(1, rows)
        fit *= distinct / UNTOLD  # of a key, that it is text says little, but that it names rows says much
        evidence.append(f"{distinct:.0%} of the rows have a value of their own")
    elif not column.nullable and len(values) < rows:
        fit *= len(values) / rows
        evidence.append(f"{rows - len(values)} of {rows} rows have no value")
    return Match(name, other, round(NAME * alike + VALUES * fit, 3) if fit else 0.0, tuple(evidence))


def _fit(name: str, column: Column, values: Sequence[Any], checks: Checks) -> tuple[float, str]:
    """Share of the values that the declared column takes, and that in words."""
    if not values:
        return UNTOLD, "no value to compare"
    if column.type in MEDIA_NAMES and all(isinstance(value, str) for value in values):
        paths = sum(bool(MEDIA_NAMES[column.type].search(value)) for value in values)
        return paths / len(values), f"{paths} of {len(values)} values are paths of {column.type} files"
    if column.type == "string":
        texts = sum(isinstance(value, str) for value in values)
        share = (1 + texts / len(values)) / 2  # a number can be meant as a text
        return UNTOLD * share, f"{texts} of {len(values)} values are text, which anything can be"
    taken = sum(_passes(name, column, value, checks) for value in values)
    what = f"of {len(values)} values are {'an' if column.type[0] in 'aeiou' else 'a'} {column.type} as declared"
    return taken / len(values), f"{taken} {what}"


def _passes(name: str, column: Column, value: Any, checks: Checks) -> bool:
    if (column.type in MEDIA_NAMES) != isinstance(value, bytes):
        return False
    try:
        checks.value(name, column, value)
    except RowError:
        return False
    return True


def words(name: str) -> str:
    """A column's name as words: `petName`, `pet_name` and `PET-NAME` alike."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).lower().strip()
