"""`elasmo config`: the whole configuration tree as it would be used, every default spelled out."""

from __future__ import annotations

from elasmo.cli.options import ConfigFile, Overrides


def config(overrides: Overrides = None, config_file: ConfigFile = None) -> None:
    """Print the full configuration as YAML, or say why no number of workers suits its layout."""
    from elasmo.config import dump, load
    from elasmo.parallel import planner

    read = load(config_file, overrides or ())
    planner.legal_sizes(read.train, read.model, vocab_size=None)
    print(dump(read), end="")
