"""`mmrl export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mmrl.export.export import ExportedFolder


def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN[@WHICH]", help="A run's folder: its last checkpoint, or @best, @last or @40.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder; nothing is ever overwritten.")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="The dtype of the weights.", show_default="the run's; float32 for fully trained weights"),
    ] = None,
    lora_only: Annotated[
        bool, typer.Option("--lora-only", help="Write the adapter alone, for the base to load.")
    ] = False,
    ahead: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Go on by N checkpoints without training (NExt): needs training.keep_every."
        ),
    ] = 0,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Upload to a new repository of the Hugging Face Hub too.")
    ] = None,
    private: Annotated[bool, typer.Option("--private/--public", help="Who may see the repository.")] = True,
) -> None:
    """Write a checkpoint as a plain diffusers or transformers folder that loads without mmrl."""
    from mmrl.export.export import HubRepository
    from mmrl.export.export import export as write

    repository = HubRepository.find(push, private) if push else None  # raises before the export is written
    done = write(run, out, dtype, lora_only, repository=push, ahead=ahead)
    typer.echo(_summary(done))
    if repository is not None:
        typer.echo(repository.announcement(done))
        typer.echo(repository.upload(done))


def _summary(done: ExportedFolder) -> str:
    files = "\n".join(f"  {name}  {_size(size)}" for name, size in done.files.items())
    code = done.content.code.replace(f'"{done.folder.name}"', f'"{done.folder.as_posix()}"')
    return f"{done.model.name}, iteration {done.model.step}: {done.folder}\n{files}\n\n{code}"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
