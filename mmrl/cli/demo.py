"""`mmrl demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs: RUN, RUN@best, RUN@40 or RUN@base; the base comes by itself."),
    ],
    host: Annotated[str, typer.Option("--host", help="Where to listen; other machines can reach any but this.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Where to listen.", min=1, max=65535)] = 7860,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    votes: Annotated[
        Path | None, typer.Option("--votes", help="Where votes go, as JSON Lines; else RUN/votes/votes.jsonl.")
    ] = None,
) -> None:
    """Open the app that compares checkpoints."""
    from mmrl.cli.console import console, quiet_diffusers
    from mmrl.config import ConfigError

    try:
        import gradio  # noqa: F401
    except ImportError as err:
        raise ConfigError("mmrl demo needs gradio, which is not installed: pip install 'mmrl-suite[demo]'") from err
    if votes is not None and votes.suffix != ".jsonl":
        raise ConfigError(f"--votes: {votes} must end in .jsonl, as mmrl train reads it")
    from mmrl.demo.app import serve
    from mmrl.demo.request_validation import LOOPBACK

    if host not in LOOPBACK:
        console().print(f"Whoever reaches {host} can use this app: it asks for no password.", style="yellow")
    with quiet_diffusers():
        served = serve(runs, host, port, votes, open_browser=not no_open)
        console().print(f"Checkpoints: {', '.join(served.state.columns.chosen)}")
        console().print(f"Votes go to {served.state.votes.path}")
        console().print(f"Open {served.url} (Ctrl-C ends it)", soft_wrap=True)
        try:
            served.wait()
        finally:
            served.close()
