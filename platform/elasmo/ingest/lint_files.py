"""Checks rows.jsonl and the media that it names, line by line, with what ingestion checks; media by their header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasmo.config import LimitsConfig
from elasmo.ingest.finding import Finding
from elasmo.ingest.lint_media import media_problem
from elasmo.ingest.silver_rows import heldout_by_hash
from elasmo.sources.check import Checks
from elasmo.sources.contract import CONTRACT_FILE, Contract
from elasmo.sources.files import KINDS, ROWS, FilesSource
from elasmo.sources.quarantine import RowError

UNNAMED_SHOWN = 20
ORDER = ("image", "audio", "table")


@dataclass(frozen=True)
class Line:
    """A line that passed the checks of its own: who it is, where it belongs, which media it names."""

    number: int
    name: str
    concept: str
    split: str | None
    media: tuple[tuple[str, str], ...]  # kind, path
    messages: str


def lint_files(folder: Path, contract: Contract, limits: LimitsConfig) -> list[Finding]:
    """Findings in the rows and the media of a `files` source."""
    rows = folder / contract.rows
    if not rows.is_file():
        return [Finding("error", rows, None, "does not exist; the contract's `rows` must name a JSONL file beside it.")]
    source, found = FilesSource(folder, contract), list[Finding]()
    lines = list(_lines(source, contract, limits, found))
    if not lines:
        found.append(Finding("error", rows, None, "holds no line that can be used; write at least one conversation."))
    _repeated(rows, lines, found)
    _media(folder, contract, limits, lines, found)
    _sides(folder, contract, lines, found)
    _unnamed(folder, contract, source, found)
    return found


def _lines(source: FilesSource, contract: Contract, limits: LimitsConfig, found: list[Finding]) -> Iterator[Line]:
    checks, spec = Checks(contract.record, limits, contract.media.sample_rate), source.tables[ROWS]
    for number, text in source.lines():
        try:
            row = source.parse(ROWS, {"key": f"{contract.rows}:{number}", "line": text})
            row = {name: checks.value(name, column, row.get(name)) for name, column in spec.columns.items()}
            segments = [segment for turn in json.loads(row["messages"]) for segment in turn["segments"]]
            kinds = {kind for segment in segments for kind in segment}
            modality = "+".join(kind for kind in ORDER if kind in kinds) or "text"
            if modality not in contract.modalities:
                raise RowError(
                    f"its modality {modality} is not one of the contract's `modalities`: "
                    f"{', '.join(contract.modalities)}"
                )
        except RowError as error:
            found.append(Finding("error", source.path, number, f"{error}."))
            continue
        media = tuple((kind, path) for segment in segments for kind, path in segment.items() if kind in KINDS)
        yield Line(number, row["id"], row["concept"], row["split"], media, row["messages"])


def _repeated(rows: Path, lines: Sequence[Line], found: list[Finding]) -> None:
    names, messages = dict[str, int](), dict[str, int]()
    for line in lines:
        if line.name in names:
            text = f"id {line.name!r} is also the id of line {names[line.name]}; ids are unique, give another one."
            found.append(Finding("error", rows, line.number, text))
        elif line.messages in messages:
            text = f"its messages are those of line {messages[line.messages]}; exact duplicates are kept once."
            found.append(Finding("warning", rows, line.number, text))
        names.setdefault(line.name, line.number)
        messages.setdefault(line.messages, line.number)


def _media(folder: Path, contract: Contract, limits: LimitsConfig, lines: Sequence[Line], found: list[Finding]) -> None:
    """Each medium once, at the first line that names it."""
    first: dict[tuple[str, str], int] = {}
    for line in lines:
        for medium in line.media:
            first.setdefault(medium, line.number)
    for (kind, name), number in first.items():
        path = folder / name
        if not path.is_file():
            text = f"{kind} {name} does not exist beside {contract.rows}; add the file or mend the path."
            found.append(Finding("error", folder / contract.rows, number, text))
            continue
        problem = media_problem(kind, path, path.stat().st_size, limits, contract.media.sample_rate)
        if problem:
            found.append(Finding("error", path, None, f"{problem} (named in {contract.rows}:{number})"))


def _sides(folder: Path, contract: Contract, lines: Sequence[Line], found: list[Finding]) -> None:
    """Concepts and media that are trained on and held out, and a side that is empty."""
    rows = folder / contract.rows
    heldout = {line.concept: line.number for line in reversed(lines) if line.split == "heldout"}
    sides: dict[str, list[Line]] = {"train": [], "heldout": []}
    for line in lines:
        if line.split == "train" and line.concept in heldout:
            text = (
                f"concept {line.concept!r} is train here and held out in line {heldout[line.concept]}; it would leak."
            )
            found.append(Finding("error", rows, line.number, text))
            continue
        by_hash = heldout_by_hash(ROWS, line.concept, contract.heldout_fraction)
        declared = line.split or ("heldout" if line.concept in heldout or by_hash else "train")
        sides[declared].append(line)
    unseen = {digest: line.number for line in reversed(sides["heldout"]) for digest in _digests(folder, line)}
    for line in sides["train"]:
        leaks = [unseen[digest] for digest in _digests(folder, line) if digest in unseen]
        if leaks:
            text = f"an image or sound of it is, byte for byte, in held-out line {leaks[0]}; training on it would leak."
            found.append(Finding("error", rows, line.number, text))
    if lines and not sides["train"]:
        found.append(
            Finding("error", rows, None, "leaves no training row; mark some `split: train` or lower heldout_fraction.")
        )
    if lines and not sides["heldout"]:
        found.append(Finding("warning", rows, None, "holds no row out; evaluation will have nothing to ask."))


def _digests(folder: Path, line: Line) -> list[str]:
    paths = [folder / name for _, name in line.media]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]


def _unnamed(folder: Path, contract: Contract, source: FilesSource, found: list[Finding]) -> None:
    """Files that no readable line names; hidden ones, texts about the dataset and code are meant to be there."""
    named = {folder / path for _, path in source.media()} | {folder / CONTRACT_FILE, source.path}
    others = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path not in named
        and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        and path.suffix not in (".md", ".txt", ".py")
        and path.name not in ("LICENSE", "LICENCE", "COPYING")
    ]
    for path in others[:UNNAMED_SHOWN]:
        found.append(Finding("warning", path, None, f"is named by no line of {contract.rows}; it is not ingested."))
    if len(others) > UNNAMED_SHOWN:
        more = len(others) - UNNAMED_SHOWN
        found.append(Finding("warning", folder, None, f"{more} more files are named by no line of {contract.rows}."))
