"""`elasmo config`: the whole configuration tree as it would be used, every default spelled out."""

from __future__ import annotations

from elasmo.cli.options import ConfigFile, Overrides


def config(overrides: Overrides = None, config_file: ConfigFile = None) -> None:
    """Print the full configuration as YAML."""
    from elasmo.config import dump, load

    print(dump(load(config_file, overrides or ())), end="")
