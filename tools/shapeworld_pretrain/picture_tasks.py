"""Pre-trains the embedded pipelines that edit a picture and that fill a hole in one, from the text-to-image UNet.

`python -m tools.shapeworld_pretrain.picture_tasks edit` (as InstructPix2Pix, arXiv:2211.09800), or `inpaint` (as Stable
Diffusion's inpainting model), or `masks` (from the pipeline of `inpaint`: to fill holes, and to leave them empty)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from PIL import Image
from torch import Tensor

from mmrl_shapeworld import unets
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.editing import Edit, judge_edit, sample_edit
from mmrl_shapeworld.inpainting import GRID, Hole, judge_hole, sample_hole
from mmrl_shapeworld.mask_tasks import MaskTask, judge_mask, sample_mask_task
from mmrl_shapeworld.scenes import Scene, draw
from mmrl_shapeworld.shipped_models import GENERATORS
from tools.shapeworld_pretrain.pictures import to_tensor
from tools.shapeworld_pretrain.unet import TrainItem, encode, fit, tokenize

TaskName = Literal["edit", "inpaint", "masks"]
CONFUSED = 0.3
"""The share of the examples of `masks` whose solution is that of the other task: what is left to reinforcement."""


@dataclass(frozen=True)
class PictureTask:
    """A task that changes a picture by a text; an example has a `source` scene, and its text is `str(example)`."""

    seed: int
    sample: Callable[[np.random.Generator], tuple[Any, Any]]
    """Returns an example, and the scene that solves it."""
    context: Callable[[AutoencoderKL, list[Any]], Tensor]
    """Returns what the UNet sees beside the noisy latents, [N, C, 8, 8], as the pipeline prepares it."""
    arguments: Callable[[list[Any]], dict[str, Any]]
    """Returns the arguments of the pipeline's call beside the texts and the pictures."""
    judge: Callable[[Image.Image, Any], Any]
    """Returns a verdict with `strict` and `score`."""
    kind: unets.Kind
    """The pipeline's class."""
    base: Path = GENERATORS["unet"]
    """The pipeline that training begins with."""


def sample_edit_and_target(rng: np.random.Generator) -> tuple[Edit, Any]:
    """Return an edit and the scene after it."""
    edit = sample_edit(rng, SEEN_KINDS)
    return edit, edit.target


def source_latents(vae: AutoencoderKL, edits: list[Edit]) -> Tensor:
    """Return the latents [N, 4, 8, 8] of the pictures to edit; unscaled, as the pipeline shows them."""
    return encode(vae, to_tensor([draw(edit.source) for edit in edits]))


def visible_around(vae: AutoencoderKL, holes: list[Hole]) -> Tensor:
    """[N, 5, 8, 8]; the mask, and the latent of the picture with a grey hole, as the pipeline prepares them."""
    masks = torch.from_numpy(np.stack([hole.mask() for hole in holes])).float()[:, None]
    holed = to_tensor([draw(hole.source) for hole in holes]) * (masks < 0.5)
    rest = encode(vae, holed, drawn=True) * vae.config.scaling_factor
    return torch.cat([masks[:, :, ::GRID, ::GRID], rest], dim=1)


def sample_confused(rng: np.random.Generator) -> tuple[MaskTask, Any]:
    """Return a task with a mask, and a scene that solves it or, in some examples, the other task."""
    task, solved = sample_mask_task(rng, "fill" if rng.random() < 0.5 else "removal", SEEN_KINDS)
    if rng.random() >= CONFUSED:
        return task, solved
    empty = Scene(task.source.things[1:])
    return task, empty if task.name == "fill" else task.source


@dataclass(frozen=True)
class TaskVerdict:
    """The score of a picture in its task with a mask, and whether that is high."""

    score: float
    strict: bool


def judge_task(picture: Image.Image, task: MaskTask) -> TaskVerdict:
    """Judge a picture by the rules of its task."""
    score = judge_mask(picture, task.hole).score(task.name)
    return TaskVerdict(score, score > 0.8)


def mask_images(holes: list[Hole]) -> dict[str, Any]:
    """Return the masks of holes as the pipeline takes them."""
    return {"mask_image": [hole.mask_picture() for hole in holes]}


TASKS: dict[TaskName, PictureTask] = {
    "edit": PictureTask(510, sample_edit_and_target, source_latents, lambda _: {}, judge_edit, "edit"),
    "inpaint": PictureTask(
        610, lambda rng: sample_hole(rng, SEEN_KINDS), visible_around, mask_images, judge_hole, "inpaint"
    ),
    "masks": PictureTask(
        710,
        sample_confused,
        lambda vae, tasks: visible_around(vae, [task.hole for task in tasks]),
        lambda tasks: mask_images([task.hole for task in tasks]),
        judge_task,
        "inpaint",
        GENERATORS["inpaint"],
    ),
}


def train(name: TaskName, folder: Path, base: Path, steps: int, seed: int = 0, examples: int = 6_000) -> None:
    """Train the pipeline of a task from the pipeline with a UNet in `base`, and save the whole pipeline."""
    task = TASKS[name]
    torch.manual_seed(seed)
    parts = DiffusionPipeline.from_pretrained(base, dtype=torch.float32)
    vae, tokenizer = parts.vae.requires_grad_(False), parts.tokenizer
    rng = np.random.default_rng(task.seed + seed)
    pairs = [task.sample(rng) for _ in range(examples)]
    sources = [example for example, _ in pairs]
    lesson = TrainItem(
        clean=encode(vae, to_tensor([draw(solution) for _, solution in pairs])) * vae.config.scaling_factor,
        tokens=tokenize(tokenizer, [str(example) for example in sources]),
        context=task.context(vae, sources),
    )
    print(f"{examples} examples after {time.process_time():.0f} CPU-seconds", flush=True)
    wide = unets.widened(parts.unet, unets.CHANNELS[task.kind])
    average = fit(wide, parts.text_encoder.train().requires_grad_(True), lesson, tokenize(tokenizer, [""]), steps)
    pipe = unets.build(task.kind, tokenizer, average[1], vae, average[0])
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    print("strict, partial credit:", skill(name, pipe), f"after {time.process_time():.0f} CPU-seconds", flush=True)


@torch.no_grad()
def skill(
    name: TaskName, pipe: DiffusionPipeline, count: int = 192, steps: int = 10, seed: int = 5
) -> tuple[float, float]:
    """Mean strict correctness and partial credit on fresh examples of a task, without guidance."""
    task, rng = TASKS[name], np.random.default_rng(seed)
    examples = [task.sample(rng)[0] for _ in range(count)]
    pictures = pipe(
        [str(example) for example in examples],
        image=[draw(example.source) for example in examples],
        **task.arguments(examples),
        num_inference_steps=steps,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).images
    verdicts = [task.judge(picture, example) for picture, example in zip(pictures, examples, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*TASKS])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, help="default: what the shipped pipeline began with")
    parser.add_argument("--out", type=Path, help="default: where the pipeline ships")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.task, args.out or GENERATORS[args.task], args.base or TASKS[args.task].base, args.steps, args.seed)


if __name__ == "__main__":
    main()
