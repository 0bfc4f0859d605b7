"""`elasmo chat`: one question to a running endpoint, with pictures, sounds or a record, answered as it is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def chat(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    url: Annotated[str, typer.Option(help="The endpoint.")] = "http://127.0.0.1:8000",
    image: Annotated[list[Path] | None, typer.Option(help="Picture to show; may be given again.")] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="WAV or FLAC to play; may be given again.")] = None,
    record: Annotated[str | None, typer.Option(help="Structured record, such as '{\"age\": 41}'.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name; the served one when left out.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes a sampled answer repeatable.")] = None,
    key: Annotated[
        str | None, typer.Option(help="API key, where the endpoint has any.", envvar="OPENAI_API_KEY")
    ] = None,
) -> None:
    """Ask a served model one question."""
    from elasmo.serve.client import Answer, parse_record, served_model, stream_chat, user_message

    message = user_message(question, image or (), audio or (), None if record is None else parse_record(record))
    parameters = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature}
    answer = Answer()
    asked = {"model": model or served_model(url, key=key), **parameters}
    for piece in stream_chat(url, message, answer, asked, key=key):
        typer.echo(piece, nl=False)
    typer.echo()
    tpot = "" if answer.tpot_ms is None else f", then {answer.tpot_ms:.1f} ms a token"
    prompt, completion = answer.usage.get("prompt_tokens"), answer.usage.get("completion_tokens")
    first = "no text" if answer.ttft_ms is None else f"first token after {answer.ttft_ms:.0f} ms{tpot}"
    typer.echo(f"{prompt} + {completion} tokens, {first}, finish: {answer.finish_reason}", err=True)
