"""The application builder: what it takes, and how a configuration with nothing to serve is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray import serve

import elasmo.serve
from elasmo.config import Config, ConfigError
from elasmo.model import published
from elasmo.model.published import PublishedError
from elasmo.serve.application import ServeSetupError, build
from tests.serve.tiny import tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published")
    published.write(path, "tiny", *tiny_model(), {})
    return path


def test_the_package_builds_an_application(folder: Path) -> None:
    config = Config.model_validate({"serve": {"published": str(folder)}})
    assert isinstance(elasmo.serve.app(config), serve.Application)
    assert isinstance(elasmo.serve.app(config), serve.Application)  # importing its module must not replace it


@pytest.mark.parametrize("overrides", [{"serve.retries": 1}, ["serve.retries=1"], "serve.retries=1", None])
def test_the_builder_takes_overrides_in_any_form(folder: Path, overrides: Any) -> None:
    assert isinstance(build({"published": str(folder), "overrides": overrides}), serve.Application)


def test_nothing_to_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeSetupError, match=r"serve\.published is null"):
        build({})
    with pytest.raises(PublishedError, match="elasmo publish"):
        build({"published": str(tmp_path)})


def test_unknown_arguments_and_keys_are_refused(folder: Path) -> None:
    with pytest.raises(ServeSetupError, match="'publish'"):
        build({"publish": str(folder)})
    with pytest.raises(ConfigError, match="retries"):
        build({"published": str(folder), "overrides": ["serve.retry=1"]})


def test_the_config_file_in_the_repository_names_this_builder() -> None:
    (application,) = yaml.safe_load((ROOT / "serve_apps" / "chat.yaml").read_text())["applications"]
    assert application["import_path"] == "serve_apps.chat:build"
    assert set(application["args"]) <= {"published", "config", "overrides"}
