"""`elasmo serve`: the endpoint in the foreground, until Ctrl-C."""

from __future__ import annotations

from elasmo.cli.options import ConfigFile, Overrides


def serve(overrides: Overrides = None, config_file: ConfigFile = None) -> None:
    """Serve a published model with OpenAI's API; name the folder with serve.published=FOLDER."""
    import signal

    import typer

    from elasmo.config import load
    from elasmo.serve.launch import Endpoint

    with Endpoint(load(config_file, overrides or ())) as endpoint:
        typer.echo(f"{endpoint.model!r} answers at {endpoint.url}/v1 after {endpoint.seconds:.1f} s. Ctrl-C stops it.")
        typer.echo(f'Ask it: elasmo chat --url {endpoint.url} "your question"')
        # `kill` ends it as cleanly as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("Stopping.")
