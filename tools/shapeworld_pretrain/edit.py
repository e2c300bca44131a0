"""Pre-trains the embedded pipeline that edits, from the text-to-image UNet (InstructPix2Pix, arXiv:2211.09800).

`python -m tools.shapeworld_pretrain.edit`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import DiffusionPipeline

from mmrl_shapeworld import unets
from mmrl_shapeworld.editing import Edit, judge_edit, sample_edit
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import GENERATORS
from mmrl_shapeworld.splits import SEEN_KINDS
from tools.shapeworld_pretrain.pictures import to_tensor
from tools.shapeworld_pretrain.unet import TrainItem, encode, fit, tokenize


def train(folder: Path, base: Path, steps: int, seed: int = 0, examples: int = 6_000) -> None:
    """Train from the UNet pipeline in `base`, and save the whole pipeline."""
    torch.manual_seed(seed)
    parts = DiffusionPipeline.from_pretrained(base, dtype=torch.float32)
    vae, tokenizer = parts.vae.requires_grad_(False), parts.tokenizer
    rng = np.random.default_rng(510 + seed)
    edits = [sample_edit(rng, SEEN_KINDS) for _ in range(examples)]
    lesson = TrainItem(
        clean=encode(vae, to_tensor([draw(edit.target) for edit in edits])) * vae.config.scaling_factor,
        tokens=tokenize(tokenizer, [str(edit) for edit in edits]),
        context=encode(vae, to_tensor([draw(edit.source) for edit in edits])),  # unscaled, as the pipeline shows it
    )
    print(f"{examples} examples after {time.process_time():.0f} CPU-seconds", flush=True)
    wide = unets.widened(parts.unet, unets.CHANNELS["edit"])
    average = fit(wide, parts.text_encoder.train().requires_grad_(True), lesson, tokenize(tokenizer, [""]), steps)
    pipe = unets.build("edit", tokenizer, average[1], vae, average[0])
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    print("strict, partial credit:", skill(pipe), f"after {time.process_time():.0f} CPU-seconds", flush=True)


@torch.no_grad()
def skill(pipe: DiffusionPipeline, count: int = 192, steps: int = 10, seed: int = 5) -> tuple[float, float]:
    """Mean strict correctness and partial credit on fresh edits, without guidance."""
    rng = np.random.default_rng(seed)
    edits: list[Edit] = [sample_edit(rng, SEEN_KINDS) for _ in range(count)]
    pictures = pipe(
        [str(edit) for edit in edits],
        image=[draw(edit.source) for edit in edits],
        num_inference_steps=steps,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).images
    verdicts = [judge_edit(picture, edit) for picture, edit in zip(pictures, edits, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, default=GENERATORS["unet"])
    parser.add_argument("--out", type=Path, default=GENERATORS["edit"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.base, args.steps, args.seed)


if __name__ == "__main__":
    main()
