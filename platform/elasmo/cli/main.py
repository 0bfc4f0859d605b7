"""The front door. `cli/<verb>.py` holds one function named for the verb; a user's mistake prints one sentence, exit 2.

Verb files import only typer, elasmo.cli.options and the standard library at their top, and the rest inside the
function, so that `elasmo --help` answers at once.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

import elasmo

VERBS = (
    "demo",
    "ingest",
    "align",
    "lint",
    "preview",
    "profile",
    "forecast",
    "star",
    "train",
    "checkpoint",
    "publish",
    "serve",
    "chat",
    "report",
    "plan",
    "simulate",
    "trace",
    "import-hf",
    "export-hf",
    "export-iceberg",
    "config",
    "doctor",
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Elastic training and disaggregated serving of multimodal models on Ray.",
)


def main() -> None:
    """Runs the command line of this process and exits: 0 done, 1 the verb says no, 2 the user's mistake."""
    try:
        app()
    except Exception as error:
        if "--traceback" in sys.argv[1:2]:
            raise
        message = mistake(error)
        if message is None:
            raise
        print(f"elasmo: {message}", file=sys.stderr)
        sys.exit(2)


def mistake(error: BaseException) -> str | None:
    """The sentence of a mistake the user can mend: any ValueError class of Elasmo, here or in a Ray task. Else None."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, ValueError)]
    if not any(kind.__module__.startswith("elasmo.") for kind in kinds):
        return None
    cause = getattr(error, "cause", None)  # Ray raises a subclass of the task's error; its text is a traceback.
    return str(cause if isinstance(cause, ValueError) else error)


def _version(show: bool) -> None:
    if show:
        print(f"elasmo {elasmo.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of a refused command.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Elastic training and disaggregated serving of multimodal models on Ray."""


def _register() -> None:
    for verb in VERBS:
        name = verb.replace("-", "_")
        found = getattr(importlib.import_module(f"elasmo.cli.{name}"), name)
        if isinstance(found, typer.Typer):  # a verb with verbs of its own
            app.add_typer(found, name=verb)
        else:
            app.command(verb)(found)


_register()

if __name__ == "__main__":
    main()
