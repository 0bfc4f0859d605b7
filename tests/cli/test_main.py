"""The front door: fast help that imports no heavy library, one sentence for a user's mistake, a traceback for ours."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from elasmo.cli.main import VERBS, app, main, mistake
from elasmo.config import Config, ConfigError, load


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_help_imports_no_heavy_library_and_lists_the_verbs() -> None:
    code = (
        "import sys, json\n"
        "from elasmo.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *help_lines, modules = done.stdout.splitlines()
    heavy = {"torch", "ray", "deepspeed", "numpy", "pandas", "pyarrow", "pydantic", "sklearn", "tokenizers", "openai"}
    assert heavy.isdisjoint(json.loads(modules))
    listed = {line.split()[0] for line in help_lines if line.startswith("  ") and line.strip()}
    assert {command.name for command in (*app.registered_commands, *app.registered_groups)} <= listed


def test_every_verb_has_a_help_line() -> None:
    groups = [group.typer_instance for group in app.registered_groups]
    named = [*(command.name for command in app.registered_commands), *(group.name for group in app.registered_groups)]
    assert sorted(map(str, named)) == sorted(VERBS)
    assert all(group is not None and group.info.help for group in groups)
    inner = [command for group in groups if group is not None for command in group.registered_commands]
    for command in (*app.registered_commands, *inner):
        assert command.callback is not None and command.callback.__doc__, command.name


def test_config_prints_the_tree_that_would_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "config", "train.steps=7") == 0
    assert Config.model_validate(yaml.safe_load(capsys.readouterr().out)) == load(overrides=["train.steps=7"])


def test_config_refuses_a_layout_that_no_number_of_workers_suits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "config", "train.layout.tp=3") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "elasmo: train.layout needs a multiple of tp=3 x pp=1 x sp=1 = 3 workers, and train."
    )
    assert captured.err.endswith("has none; set train.workers.max=3, or change train.layout.\n")


def test_a_mistake_is_one_sentence_on_stderr_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "config", "train.stps=7") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "elasmo: Unknown config key 'train.stps'; did you mean 'train.steps'?\n"


def test_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["elasmo", "--traceback", "config", "train.stps=7"])
    with pytest.raises(ConfigError):
        main()


def test_an_unknown_verb_is_refused_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "confg") == 2
    assert "'config'" in capsys.readouterr().err


def test_version_is_the_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import elasmo

    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"elasmo {elasmo.__version__}\n"


def test_only_our_own_value_errors_are_the_users_mistake() -> None:
    class TaskError(RuntimeError, ConfigError):  # the shape in which Ray raises a task's error again
        cause = ConfigError("the sentence")

    assert mistake(ConfigError("a sentence")) == "a sentence"
    assert mistake(TaskError("a long traceback")) == "the sentence"
    assert mistake(ValueError("torch said so")) is None
    assert mistake(KeyError("a defect")) is None
