"""Pre-trains the embedded video pipeline, from the text-to-image UNet (AnimateDiff, arXiv:2307.04725).

`python -m tools.shapeworld_pretrain.video`
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

from mmrl_shapeworld import animated, unets
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.motion import FRAMES, PIXELS, Motion, draw_clip, judge_clip, sample_clip, sample_motion
from mmrl_shapeworld.shipped_models import GENERATORS
from tools.shapeworld_pretrain.pictures import to_tensor
from tools.shapeworld_pretrain.unet import TrainItem, encode, fit


def train(folder: Path, base: Path, steps: int, seed: int = 0, examples: int = 4_000, batch: int = 14) -> None:
    """Train from the UNet pipeline in `base`, pictures and motion together, and save the whole pipeline."""
    torch.manual_seed(seed)
    parts = DiffusionPipeline.from_pretrained(base, dtype=torch.float32)
    vae = parts.vae.requires_grad_(False)
    encoder, tokenizer = animated.longer(parts.text_encoder, parts.tokenizer)
    motions, clean = clips(vae, examples, seed)
    texts = [str(motion) for motion in motions]
    tokens = tokenizer([*texts, ""], padding="max_length", truncation=True, return_tensors="pt").input_ids
    print(f"{examples} clips after {time.process_time():.0f} CPU-seconds", flush=True)
    unet = animated.denoiser(parts.unet)
    average = fit(unet, encoder.train(), TrainItem(clean, tokens[:-1], clean[:, :0]), tokens[-1:], steps, batch=batch)
    pipe = animated.build(tokenizer, average[1], vae, average[0], unets.scheduler())
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    print("strict, partial credit:", skill(pipe), f"after {time.process_time():.0f} CPU-seconds", flush=True)


def clips(vae: AutoencoderKL, count: int, seed: int) -> tuple[list[Motion], Tensor]:
    """Motions of seen kinds, and the scaled latents of a clip of each: [count, 4, 5, 8, 8]."""
    rng = np.random.default_rng(710 + seed)
    motions = [sample_motion(rng, SEEN_KINDS) for _ in range(count)]
    latents = [
        encode(vae, to_tensor([frame for motion in part for frame in draw_clip(sample_clip(motion, rng))]))
        for part in (motions[first : first + 100] for first in range(0, count, 100))
    ]
    frames = torch.cat(latents) * vae.config.scaling_factor
    return motions, frames.unflatten(0, (count, FRAMES)).transpose(1, 2).contiguous()


@torch.no_grad()
def skill(pipe: DiffusionPipeline, count: int = 128, steps: int = 10, seed: int = 5) -> tuple[float, float]:
    """Mean strict correctness and partial credit on fresh motions, without guidance."""
    rng = np.random.default_rng(seed)
    motions = [sample_motion(rng, SEEN_KINDS) for _ in range(count)]
    films: list[list[Image.Image]] = pipe(
        [str(motion) for motion in motions],
        height=PIXELS,
        width=PIXELS,
        num_frames=FRAMES,
        num_inference_steps=steps,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).frames
    verdicts = [judge_clip(film, motion) for film, motion in zip(films, motions, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", type=Path, default=GENERATORS["unet"])
    parser.add_argument("--out", type=Path, default=GENERATORS["video"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.base, args.steps, args.seed)


if __name__ == "__main__":
    main()
