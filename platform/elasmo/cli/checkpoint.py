"""`elasmo checkpoint`: look at, verify, compare and import training checkpoints; each verb has a file of its own."""

from __future__ import annotations

import typer

from elasmo.cli.checkpoint_diff import diff
from elasmo.cli.checkpoint_import import import_
from elasmo.cli.checkpoint_ls import ls
from elasmo.cli.checkpoint_verify import verify

checkpoint = typer.Typer(no_args_is_help=True, help="List, verify, compare and import training checkpoints.")
checkpoint.command("ls")(ls)
checkpoint.command("verify")(verify)
checkpoint.command("diff")(diff)
checkpoint.command("import")(import_)
