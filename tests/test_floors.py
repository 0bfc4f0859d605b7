"""The house: every import points to a lower floor, and what must run without Ray never reaches it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "platform" / "elasmo"
FLOORS = (
    {"config"},
    {"model", "measure"},
    {"parallel", "engine", "simulate", "stages", "content"},
    {"data"},
    {"sources", "train", "serve"},
    {"ingest"},
    {"warehouse"},
    {"cli"},
)
WITHOUT_RAY = {
    "config",
    "model",
    "measure",
    "content",
    "stages",
    "engine",
    "simulate",
    "sources",
    "ingest",
    "warehouse",
}
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> list[Path]:
    return sorted(LIBRARY.rglob("*.py"))


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute names that a module imports anywhere in it, in functions too; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"importlib.import_module", "import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


def imports_of(path: Path) -> set[str]:
    package = path.relative_to(LIBRARY.parent).parent.parts
    return set(imports(ast.parse(path.read_text()), package))


def room_of(path: Path) -> str | None:
    """The package of a module, None for elasmo/__init__.py itself."""
    parts = path.relative_to(LIBRARY).parts
    return parts[0] if len(parts) > 1 else None


def rooms_imported(path: Path) -> set[str]:
    names = (name.split(".") for name in imports_of(path))
    return {parts[1] for parts in names if parts[0] == "elasmo" and len(parts) > 1 and (LIBRARY / parts[1]).is_dir()}


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in modules()} - {None}
    assert rooms <= set(FLOOR_OF), "a new package needs its floor in FLOORS"


def test_imports_point_to_lower_floors_only() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        if room is not None:
            wrong += [
                f"{path.relative_to(ROOT)} (floor {FLOOR_OF[room]}) imports elasmo.{other} (floor {FLOOR_OF[other]})"
                for other in sorted(rooms_imported(path))
                if other != room and FLOOR_OF[other] >= FLOOR_OF[room]
            ]
    assert wrong == []


def test_nothing_but_the_top_imports_pipelines_serve_apps_or_the_cli() -> None:
    top = {"pipelines", "serve_apps", "tests"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in imports_of(path)
        if name.split(".")[0] in top or (name.startswith("elasmo.cli") and room_of(path) != "cli")
    ]
    assert wrong == []


def runs_without_ray(path: Path) -> bool:
    return room_of(path) in WITHOUT_RAY or "plan" in path.stem


def test_models_engines_simulators_and_planners_never_reach_ray() -> None:
    """Through any chain of our own modules, lazy imports included."""
    graph = {path: imports_of(path) for path in modules()}

    def file_of(name: str) -> Path | None:
        below = LIBRARY.parent.joinpath(*name.split("."))
        return next((file for file in (below.with_suffix(".py"), below / "__init__.py") if file in graph), None)

    def reaches_ray(path: Path, seen: set[Path]) -> list[str]:
        seen.add(path)
        for name in sorted(graph[path]):
            if name.split(".")[0] == "ray":
                return [str(path.relative_to(ROOT)), name]
            parents = [".".join(name.split(".")[:length]) for length in range(1, name.count(".") + 2)]
            for file in filter(None, map(file_of, parents)):
                chain = reaches_ray(file, seen) if file not in seen else []
                if chain:
                    return [str(path.relative_to(ROOT)), *chain]
        return []

    assert [chain for path in graph if runs_without_ray(path) if (chain := reaches_ray(path, set()))] == []


def test_platform_is_no_package_and_does_not_shadow_the_standard_library() -> None:
    import platform

    assert not (ROOT / "platform" / "__init__.py").exists()
    assert Path(platform.__file__).is_relative_to(Path(sys.base_prefix))


def test_packages_are_one_level_deep_and_declared() -> None:
    folders = {path.parent for path in modules()}
    assert [str(folder) for folder in folders if len(folder.relative_to(LIBRARY).parts) > 1] == []
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(LIBRARY)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} opens without a docstring"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import elasmo.serve.app as a", {"elasmo.serve.app"}),
        ("def f():\n    from elasmo.cli import main", {"elasmo.cli", "elasmo.cli.main"}),
        ("from . import plan", {"elasmo.data", "elasmo.data.plan"}),
        ("from ..serve import app", {"elasmo.serve", "elasmo.serve.app"}),
        ("import importlib\nimportlib.import_module('ray.data')", {"importlib", "ray.data"}),
    ],
)
def test_the_test_sees_every_kind_of_import(source: str, expected: set[str]) -> None:
    assert set(imports(ast.parse(source), ("elasmo", "data"))) == expected


def test_decode_processes_start_without_torch() -> None:
    """Importing torch takes a decode process longer than all else that it does before its first micro-batch."""
    code = "import sys, elasmo.data.stream; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0
