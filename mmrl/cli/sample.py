"""`mmrl sample`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmrl.cli.reward_settings import RewardArgs, reward_settings, weighted_rewards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

SMALLEST_TILE = 128  # pixels; smaller pictures are enlarged, by whole factors, on the contact sheet
CAPTION_HEIGHT = 18  # pixels
FRAMES_A_SECOND = 8
SHEET = Path("sheet") / "grid.png"
"""The contact sheet, in a folder below that of the pictures, since it is no picture of a prompt."""
PROMPTS = "prompts.txt"
"""The prompt of each picture in the order of the files' names, as `mmrl score --prompts` takes them."""


def sample(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, a model's folder or id, or `shapeworld`.")
    ],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="A prompt; repeatable.")],
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Pictures for each prompt.", show_default="4; 1 with --best-of")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise: the same seed gives the same pictures.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Denoising steps.", show_default="the run's; 10 for a model")
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(min=0.0, help="Guidance scale.", show_default="the run's or the pipeline's own")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pictures.")] = Path("samples"),
    base: Annotated[bool, typer.Option("--base", help="Use the model as it was before training.")] = False,
    conditions: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="Another argument of the pipeline: image=cat.png."),
    ] = None,
    rlg: Annotated[
        float | None,
        typer.Option(metavar="SCALE", help="RL guidance of a run: 0 is its base, 1 its checkpoint, 1.5 beyond it."),
    ] = None,
    lora_strength: Annotated[
        float | None, typer.Option(metavar="STRENGTH", help="Factor of a run's LoRA: 0 is its base, 1 its checkpoint.")
    ] = None,
    guide: Annotated[
        list[str] | None,
        typer.Option(metavar="REWARD=WEIGHT", help="Steer by a differentiable reward's gradient; repeatable."),
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draw N of each prompt and keep the best --n.")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            "-r",
            metavar="REWARD[=WEIGHT]",
            help="A reward by which --best-of ranks; repeatable.",
            show_default="the run's own",
        ),
    ] = None,
    arg: RewardArgs = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Write all pictures that --best-of generated.")] = False,
) -> None:
    """Generate pictures with a trained run or a model."""
    from mmrl.config.loading.overrides import check_set_once, parse_override
    from mmrl.workflows.generate_images import InferenceOptions, generate_images

    check_set_once(conditions or [])
    arguments = {".".join(map(str, path)): value for path, value in map(parse_override, conditions or [])}
    guides, ranking = weighted_rewards(guide or [], "--guide"), weighted_rewards(reward or [], "--reward", unset=1.0)
    options = InferenceOptions(
        rlg=rlg,
        lora_strength=lora_strength,
        guide=guides,
        best_of=best_of,
        rewards=ranking,
        arguments=reward_settings([*(guides | ranking)], arg or []),
    )
    kept = n or (4 if best_of is None else 1)
    pictures = generate_images(target, prompt, kept, seed, steps, guidance, base, arguments, options)
    out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    drawn_for: dict[tuple[int, int], str] = {}
    for picture in pictures:
        if picture.rank >= kept and not keep_all:
            continue
        path = save(picture.image, out / f"prompt{picture.prompt}-{picture.rank}")
        drawn_for[picture.prompt, picture.rank] = " ".join(prompt[picture.prompt].split())
        scores = {name: value if math.isfinite(value) else None for name, value in picture.scores.items()}
        lines.append(json.dumps({"file": path.name, "prompt": prompt[picture.prompt], "scores": scores}))
        listed = "  ".join(f"{name} {value:.4g}" for name, value in picture.scores.items())
        typer.echo(f"{path}  {listed}" if listed else path)
    if best_of is not None:
        written = out / "scores.jsonl"
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
        typer.echo(written)
    (out / PROMPTS).write_text("".join(f"{drawn_for[place]}\n" for place in sorted(drawn_for)), encoding="utf-8")
    sheet = out / SHEET
    sheet.parent.mkdir(exist_ok=True)
    best = [picture.image for picture in pictures if picture.rank < kept]
    stills = [image[len(image) // 2] if isinstance(image, list) else image for image in best]
    contact_sheet(stills, prompt, kept).save(sheet)
    typer.echo(sheet)


def save(image: Image | list[Image], path: Path) -> Path:
    """Write a picture as PNG or a video as GIF, and return the path with its suffix."""
    if isinstance(image, list):
        path = path.with_suffix(".gif")
        image[0].save(path, save_all=True, append_images=image[1:], duration=1000 // FRAMES_A_SECOND, loop=0)
    else:
        path = path.with_suffix(".png")
        image.save(path)
    return path


def contact_sheet(images: Sequence[Image], prompts: Sequence[str], columns: int) -> Image:
    """Return all pictures on one sheet: a row for each prompt, below its text."""
    from PIL import Image as pil
    from PIL import ImageDraw

    width, height = (max(each.size[side] for each in images) for side in (0, 1))
    scale = max(1, -(-SMALLEST_TILE // max(width, height)))
    width, height = width * scale, height * scale
    sheet = pil.new("RGB", (columns * width, len(prompts) * (height + CAPTION_HEIGHT)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, prompt in enumerate(prompts):
        top = row * (height + CAPTION_HEIGHT)
        printable = prompt.encode("latin-1", "replace").decode("latin-1")  # the characters of Pillow's own font
        pen.text((3, top + 3), " ".join(printable.split()), fill="black")
        for column, image in enumerate(images[row * columns : (row + 1) * columns]):
            tile = image.convert("RGB").resize((image.width * scale, image.height * scale), pil.Resampling.NEAREST)
            sheet.paste(tile, (column * width, top + CAPTION_HEIGHT))
    return sheet
