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


def sample(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, a model's folder or id, or `shapeworld`.")
    ],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to draw; may be repeated.")],
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Pictures of each prompt.", show_default="4; 1 with --best-of")
    ] = None,
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
    rlg: Annotated[
        float | None,
        typer.Option(metavar="SCALE", help="RL guidance of a run: 0 is its base, 1 what it learnt, 1.5 beyond that."),
    ] = None,
    lora_strength: Annotated[
        float | None, typer.Option(metavar="STRENGTH", help="How much a run's LoRA counts: 0 not at all, 1 in full.")
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
            help="What --best-of goes by; repeatable.",
            show_default="the run's own",
        ),
    ] = None,
    arg: RewardArgs = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Write all pictures that --best-of drew.")] = False,
) -> None:
    """Draw pictures with a trained run or a model."""
    from mmrl.config.loading.overrides import parse_override
    from mmrl.workflows.sample import InferenceOptions, draw

    conditions = {".".join(map(str, path)): value for path, value in map(parse_override, given or [])}
    guides, judges = weighted_rewards(guide or [], "--guide"), weighted_rewards(reward or [], "--reward", unset=1.0)
    steering = InferenceOptions(
        rlg=rlg,
        lora_strength=lora_strength,
        guide=guides,
        best_of=best_of,
        rewards=judges,
        arguments=reward_settings([*(guides | judges)], arg or []),
    )
    kept = n or (4 if best_of is None else 1)
    pictures = draw(target, prompt, kept, seed, steps, guidance, base, conditions, steering)
    out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for picture in pictures:
        if picture.rank >= kept and not keep_all:
            continue
        path = save(picture.image, out / f"prompt{picture.prompt}-{picture.rank}")
        scores = {name: value if math.isfinite(value) else None for name, value in picture.scores.items()}
        lines.append(json.dumps({"file": path.name, "prompt": prompt[picture.prompt], "scores": scores}))
        told = "  ".join(f"{name} {value:.4g}" for name, value in picture.scores.items())
        typer.echo(f"{path}  {told}" if told else path)
    if best_of is not None:
        written = out / "scores.jsonl"
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
        typer.echo(written)
    sheet = out / "grid.png"
    shown = [picture.image for picture in pictures if picture.rank < kept]
    stills = [image[len(image) // 2] if isinstance(image, list) else image for image in shown]
    contact_sheet(stills, prompt, kept).save(sheet)
    typer.echo(sheet)


def save(image: Image | list[Image], path: Path) -> Path:
    """Write a picture as PNG, a video as GIF; gives the path with its ending."""
    if isinstance(image, list):
        path = path.with_suffix(".gif")
        image[0].save(path, save_all=True, append_images=image[1:], duration=1000 // FRAMES_A_SECOND, loop=0)
    else:
        path = path.with_suffix(".png")
        image.save(path)
    return path


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
