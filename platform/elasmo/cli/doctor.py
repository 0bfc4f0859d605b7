"""`elasmo doctor`: what is wrong with this machine for Elasmo, and how to mend it."""

from __future__ import annotations

from typing import Annotated

import typer

from elasmo.cli.options import ConfigFile, Overrides

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    overrides: Overrides = None,
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check this machine, and say how to mend what is wrong."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.text import Text

    from elasmo.cli.doctor_checks import examine
    from elasmo.cli.doctor_facts import gather
    from elasmo.config import load

    checks = examine(gather(load(config_file, overrides or ())))
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for check in checks:
            line = Text.assemble((f"{check.status:<5}", STYLES[check.status]), f"{check.name:<16} {check.found}")
            console.print(line)
            if check.status != "ok":
                console.print(Text(f"{'':<5}{'':<16} -> {check.mend}", style="bold"))
        failed = sum(check.status == "fail" for check in checks)
        warned = sum(check.status == "warn" for check in checks)
        console.print(f"\n{len(checks)} checks, {failed} failed, {warned} with a warning.")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)
