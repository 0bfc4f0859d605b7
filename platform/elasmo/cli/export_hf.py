"""`elasmo export-hf`: writes a published model, or a run's, as transformers reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_hf(
    run: Annotated[Path, typer.Argument(help="Folder of a run or of a published model.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="New folder to write.")],
    shard_mb: Annotated[int, typer.Option(min=1, help="Most megabytes of a weight file.")] = 5000,
    adapters: Annotated[bool, typer.Option("--adapters", help="Only a run's LoRA adapters, in PEFT's layout.")] = False,
) -> None:
    """Export a model for Hugging Face transformers, with the tokenizer it was imported with."""
    from elasmo.model.hugging_face import export_model
    from elasmo.train.publication import export_adapters
    from elasmo.train.publication import publish as publish_run

    if adapters:
        print(f"exported adapters of {run} to {export_adapters(run, out)}")
        return
    folder = publish_run(run).folder if (run / "run.json").is_file() else run
    files = export_model(folder, out, shard_mb * 1_000_000)
    print(f"exported {folder} to {out}: {', '.join(file.name for file in files)}")
