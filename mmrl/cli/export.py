"""`mmrl export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mmrl.export.export import Exported


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN[@WHICH]", help="A run's folder; @best, @last or @40. Plain: last.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder; nothing is ever overwritten.")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Of the weights.", show_default="as the run computed; trained whole: float32"),
    ] = None,
    lora_only: Annotated[bool, typer.Option("--lora-only", help="The adapter alone, for the base to load.")] = False,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload to a new repository of the Hugging Face Hub too.")
    ] = None,
    private: Annotated[bool, typer.Option("--private/--public", help="Who may see the repository.")] = True,
) -> None:
    """Write a checkpoint as a plain diffusers or transformers folder that loads without mmrl."""
    from mmrl.export.export import export as write
    from mmrl.export.hub import Target

    target = Target.find(push, private) if push else None  # what cannot be pushed is refused before the work
    done = write(run, out, dtype, lora_only, repository=push)
    typer.echo(_told(done))
    if target is not None:
        typer.echo(target.announced(done))
        typer.echo(target.upload(done))


def _told(done: Exported) -> str:
    files = "\n".join(f"  {name}  {_size(size)}" for name, size in done.files.items())
    return f"{done.subject.name}, iteration {done.subject.step}: {done.folder}\n{files}\n\n{done.plain.code}"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
