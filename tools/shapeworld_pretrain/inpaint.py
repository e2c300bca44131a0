"""Pre-trains the embedded pipeline that fills holes, from the text-to-image UNet (Stable Diffusion's inpainting model).

`python -m tools.shapeworld_pretrain.inpaint`
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from PIL import Image
from torch import Tensor

from mmrl_shapeworld import unets
from mmrl_shapeworld.inpainting import GRID, Hole, judge_hole, sample_hole
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
    rng = np.random.default_rng(610 + seed)
    pairs = [sample_hole(rng, SEEN_KINDS) for _ in range(examples)]
    holes = [hole for hole, _ in pairs]
    lesson = TrainItem(
        clean=encode(vae, to_tensor([draw(filled) for _, filled in pairs])) * vae.config.scaling_factor,
        tokens=tokenize(tokenizer, [str(hole) for hole in holes]),
        context=visible_around(vae, holes),
    )
    print(f"{examples} examples after {time.process_time():.0f} CPU-seconds", flush=True)
    wide = unets.widened(parts.unet, unets.CHANNELS["inpaint"])
    average = fit(wide, parts.text_encoder.train().requires_grad_(True), lesson, tokenize(tokenizer, [""]), steps)
    pipe = unets.build("inpaint", tokenizer, average[1], vae, average[0])
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    print("strict, partial credit:", skill(pipe), f"after {time.process_time():.0f} CPU-seconds", flush=True)


def visible_around(vae: AutoencoderKL, holes: list[Hole]) -> Tensor:
    """[N, 5, 8, 8]; the mask, and the latent of the picture with a grey hole, as the pipeline prepares them."""
    masks = torch.from_numpy(np.stack([hole.mask() for hole in holes])).float()[:, None]
    holed = to_tensor([draw(hole.source) for hole in holes]) * (masks < 0.5)
    rest = encode(vae, holed, drawn=True) * vae.config.scaling_factor
    return torch.cat([masks[:, :, ::GRID, ::GRID], rest], dim=1)


@torch.no_grad()
def skill(pipe: DiffusionPipeline, count: int = 192, steps: int = 10, seed: int = 5) -> tuple[float, float]:
    """Mean strict correctness and partial credit on fresh holes, without guidance."""
    rng = np.random.default_rng(seed)
    holes = [sample_hole(rng, SEEN_KINDS)[0] for _ in range(count)]
    pictures = pipe(
        [str(hole) for hole in holes],
        image=[draw(hole.source) for hole in holes],
        mask_image=[Image.fromarray(hole.mask()).convert("L") for hole in holes],
        num_inference_steps=steps,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).images
    verdicts = [judge_hole(picture, hole) for picture, hole in zip(pictures, holes, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, default=GENERATORS["unet"])
    parser.add_argument("--out", type=Path, default=GENERATORS["inpaint"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.base, args.steps, args.seed)


if __name__ == "__main__":
    main()
