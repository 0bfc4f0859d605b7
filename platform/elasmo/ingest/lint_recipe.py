"""Reads a recipe without running it: that it is Python, defines what ingestion calls, and lands declared columns."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from elasmo.config import LimitsConfig
from elasmo.ingest.finding import Finding
from elasmo.sources.contract import Contract
from elasmo.sources.recipe import FUNCTIONS


def lint_recipe(folder: Path, contract: Contract, limits: LimitsConfig) -> list[Finding]:
    """Findings in a recipe and the modules beside it; what it makes up as it runs is left to ingestion."""
    path, found = folder / contract.recipe, list[Finding]()
    if not path.is_file():
        return [Finding("error", path, None, "does not exist; the contract's `recipe` must name a file beside it.")]
    trees: dict[Path, ast.Module] = {}
    for module in sorted({path, *folder.glob("*.py")}):
        try:
            trees[module] = ast.parse(module.read_text())
        except (SyntaxError, ValueError) as error:
            line = error.lineno if isinstance(error, SyntaxError) else None
            found.append(Finding("error", module, line, f"is not valid Python: {getattr(error, 'msg', error)}."))
    if path not in trees:
        return found
    defined = _names(trees[path])
    for function in FUNCTIONS:
        if function not in defined:
            text = f"has no function {function}(); a recipe defines {', '.join(FUNCTIONS)}."
            found.append(Finding("error", path, None, text))
    landed: set[str] = set()
    for table, line, columns, whole in _landed(trees[path]):
        landed.add(table)
        found += _columns(path, contract, table, line, columns, whole)
    for table in contract.tables:
        if landed and table not in landed and not _mentions(trees.values(), table):
            text = f"lands no row in table {table!r} of the contract; land some, or remove tables.{table}."
            found.append(Finding("warning", path, None, text))
    return found


def _columns(path: Path, contract: Contract, table: str, line: int, columns: set[str], whole: bool) -> list[Finding]:
    """Findings in one row that the recipe writes out; `whole` when no other columns are merged into it."""
    if table not in contract.tables:
        text = f"lands a row in table {table!r}; the contract has {', '.join(contract.tables)}."
        return [Finding("error", path, line, text)]
    declared = contract.tables[table].columns
    found = [
        Finding("error", path, line, f"column {name!r} of table {table} is not declared; it would be dropped.")
        for name in sorted(columns - set(declared))
    ]
    if whole:
        found += [
            Finding("error", path, line, f"column {name!r} of table {table} is not landed, and may not be missing.")
            for name, column in declared.items()
            if name not in columns and not column.nullable
        ]
    return found


def _landed(tree: ast.Module) -> Iterator[tuple[str, int, set[str], bool]]:
    """Table, line, columns and completeness of every `yield "table", {"column": ...}` in land()."""
    lands = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "land"]
    for node in (node for function in lands for node in ast.walk(function)):
        if not isinstance(node, ast.Yield) or not isinstance(node.value, ast.Tuple) or len(node.value.elts) != 2:
            continue
        table, row = node.value.elts
        if isinstance(table, ast.Constant) and isinstance(table.value, str):
            if not isinstance(row, ast.Dict):
                yield table.value, table.lineno, set(), False
                continue
            names = {key.value for key in row.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            yield table.value, row.lineno, names, len(names) == len(row.keys)


def _names(tree: ast.Module) -> set[str]:
    """What the module defines or imports at its top."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _mentions(trees: Iterable[ast.Module], table: str) -> bool:
    nodes = (node for tree in trees for node in ast.walk(tree))
    return any(isinstance(node, ast.Constant) and node.value == table for node in nodes)
