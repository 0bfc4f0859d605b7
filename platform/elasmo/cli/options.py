"""The arguments that several verbs share: a config file and `section.key=value` overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML config file; the defaults when left out.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="SECTION.KEY=VALUE", help="Config overrides, such as train.steps=200.", show_default=False),
]
