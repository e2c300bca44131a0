"""`mmrl sample`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

SMALLEST_TILE = 128  # pixels; smaller pictures are enlarged, by whole factors, on the contact sheet
CAPTION_HEIGHT = 18  # pixels
FRAMES_A_SECOND = 8


def sample(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, a model's folder or id, or `shapeworld`.")
    ],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to draw; may be repeated.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Pictures of each prompt.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Denoising steps.", show_default="the run's; 10 for a model")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(min=0.0, help="Guidance scale.", show_default="the run's or the pipeline's own")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")] = Path("samples"),
    base: Annotated[bool, typer.Option("--base", help="Draw with the model as it was before training.")] = False,
    given: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="What the pipeline takes beside a prompt: image=cat.png."),
    ] = None,
) -> None:
    """Draw pictures with a trained run or a model."""
    from mmrl.assemble import sample_images
    from mmrl.config.overrides import parse_override

    conditions = {".".join(map(str, path)): value for path, value in map(parse_override, given or [])}
    images = sample_images(target, prompt, n, seed, steps, guidance, base, conditions)
    out.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        path = out / f"prompt{i // n}-{i % n}"
        if isinstance(image, list):
            path = path.with_suffix(".gif")
            image[0].save(path, save_all=True, append_images=image[1:], duration=1000 // FRAMES_A_SECOND, loop=0)
        else:
            path = path.with_suffix(".png")
            image.save(path)
        typer.echo(path)
    sheet = out / "grid.png"
    stills = [image[len(image) // 2] if isinstance(image, list) else image for image in images]
    contact_sheet(stills, prompt, n).save(sheet)
    typer.echo(sheet)


def contact_sheet(images: Sequence[Image], prompts: Sequence[str], columns: int) -> Image:
    """All pictures on one: a row a prompt, its text above it."""
    from PIL import Image as pil
    from PIL import ImageDraw

    width, height = (max(each.size[side] for each in images) for side in (0, 1))
    scale = max(1, -(-SMALLEST_TILE // max(width, height)))
    width, height = width * scale, height * scale
    sheet = pil.new("RGB", (columns * width, len(prompts) * (height + CAPTION_HEIGHT)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, prompt in enumerate(prompts):
        top = row * (height + CAPTION_HEIGHT)
        printable = prompt.encode("latin-1", "replace").decode("latin-1")  # what Pillow's own font can draw
        pen.text((3, top + 3), " ".join(printable.split()), fill="black")
        for column, image in enumerate(images[row * columns : (row + 1) * columns]):
            tile = image.convert("RGB").resize((image.width * scale, image.height * scale), pil.Resampling.NEAREST)
            sheet.paste(tile, (column * width, top + CAPTION_HEIGHT))
    return sheet
