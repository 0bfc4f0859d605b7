"""`elasmo import-hf`: turns a Hugging Face checkpoint into a published model, a tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_hf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with config.json and safetensors weights.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the published model into.")],
    name: Annotated[str | None, typer.Option(help="Name of the model; the folder's when left out.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an import of another folder in OUT.")] = False,
) -> None:
    """Import a Hugging Face model: Llama, Qwen2, Qwen3, Mixtral, Qwen3-MoE, LLaVA 1.5 or Qwen2-Audio."""
    from elasmo.model.hugging_face import import_model

    done = import_model(folder, out, name, replace)
    print(f"imported {done.architecture}, {done.parameters:,} parameters, hash {done.model_hash}")
    print(f"  folder  {out}")
    print(f"  kept    {', '.join(done.kept)}")
    print(f"  export  elasmo export-hf {out} DIR")
