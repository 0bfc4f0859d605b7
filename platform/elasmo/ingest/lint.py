"""Checks a dataset folder without ingesting it: the contract with its lines, then the rows and media, or the recipe.

No code of the folder runs, no pixel is decoded and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from elasmo.config import LimitsConfig
from elasmo.ingest.finding import Finding
from elasmo.ingest.lint_files import lint_files
from elasmo.ingest.lint_recipe import lint_recipe
from elasmo.ingest.lint_tables import lint_tables
from elasmo.ingest.silver import followed_first
from elasmo.sources.contract import CONTRACT_FILE, ContractError, load_contract


def lint(folder: Path, platform: LimitsConfig) -> list[Finding]:
    """Everything that ingestion of the folder would refuse, and what it would pass over, in order of file and line.

    Raises:
        ContractError: no such folder, or no contract in it.
    """
    path = folder / CONTRACT_FILE
    if not path.is_file():
        load_contract(folder)  # says which of the two is missing
    try:
        root = yaml.compose(path.read_text())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return [Finding("error", path, mark.line + 1 if mark else None, f"not valid YAML: {error.problem}.")]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [Finding("error", path, None, f"not valid YAML: {' '.join(str(error).split())}.")]
    found = [
        Finding("error", path, line, f"key {key!r} is given twice; the first is lost, remove one.")
        for key, line in _repeated(root)
    ]
    try:
        contract = load_contract(folder)
        followed_first(contract.tables, contract.splits)
    except ContractError as error:
        places = error.places or ((),)
        sentences = str(error).splitlines() if error.places else [str(error)]
        for sentence, place in zip(sentences, places, strict=True):
            text = sentence.removeprefix(f"{path}: ").removeprefix(f"{path} ")
            found.append(Finding("error", path, _line(root, place), text))
        return sorted(found, key=lambda finding: finding.line or 0)
    check = {"recipe": lint_recipe, "files": lint_files, "tables": lint_tables}[contract.source]
    found += check(folder, contract, contract.media.limits(platform))
    return sorted(found, key=lambda finding: (finding.path != path, str(finding.path), finding.line or 0))


def _line(root: yaml.Node | None, place: Sequence[str | int]) -> int | None:
    """The line of a key, or of the nearest one above it that is there; None for the whole file."""
    node, line = root, None
    for step in place:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if not found:
                return line
            key, node = found[-1]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
    return line


def _repeated(node: yaml.Node | None) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has twice, with the line of the second: YAML keeps the last one in silence."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _repeated(item)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    yield key.value, key.start_mark.line + 1
                seen.add(key.value)
            yield from _repeated(value)
