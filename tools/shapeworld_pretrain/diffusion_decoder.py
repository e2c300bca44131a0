"""Pre-trains the diffusion decoder of the embedded generator of image tokens: codes of a picture to its pixels.

`python -m tools.shapeworld_pretrain.diffusion_decoder`
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl.generation.image_tokens.diffusion_decoder import DiffusionDecoder
from mmrl_shapeworld import diffused_pictures, image_ar
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.shipped_models import DIFFUSION_DECODER, IMAGE_AR
from tools.shapeworld_pretrain.image_ar import codes_of
from tools.shapeworld_pretrain.pictures import rendered, to_pictures
from tools.shapeworld_pretrain.steps import advance, build_optimizers, follow, set_rate

ENDS = ("conv_in", "conv_out", "time_embedding", "embeddings")
"""Parts that AdamW trains."""


def train(folder: Path, steps: int = 1800, seed: int = 0, examples: int = 12_000, batch: int = 64) -> None:
    """Train for a number of steps, as the picture itself is predicted, and save the moving average.

    Being a codec, it sees pictures of all kinds.
    """
    torch.manual_seed(seed)
    patches = load_file(IMAGE_AR / "patches.safetensors")["patches"]
    pictures = rendered(examples, seed=800 + seed)[1]
    codes = codes_of(patches, pictures).view(-1, image_ar.GRID, image_ar.GRID)
    squares = F.pixel_unshuffle(pictures, image_ar.PATCH)
    parts = {"unet": diffused_pictures.unet(), "embeddings": diffused_pictures.embeddings()}
    trained = nn.ModuleDict(parts).train()
    average = copy.deepcopy(trained).requires_grad_(False)
    optimizers = build_optimizers(trained, ENDS, muon=0.02, adamw=3e-3)
    scheduler = diffused_pictures.scheduler()
    running = 0.0
    for step in range(steps):
        set_rate(optimizers, step, steps)
        rows = torch.randint(len(codes), (batch,))
        loss = picture_loss(trained["unet"], scheduler, trained["embeddings"](codes[rows]), squares[rows])
        loss.backward()
        advance(optimizers, trained)
        follow(average, trained, step)
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps} loss {running:.5f} {time.process_time():.0f} CPU-seconds", flush=True)
    weights = average["embeddings"].weight
    assert isinstance(weights, Tensor)
    decoder = DiffusionDecoder(average["unet"], scheduler, weights, diffused_pictures.STEPS)
    decoder.save(folder)


def picture_loss(unet: UNet2DModel, scheduler: DDIMScheduler, context: Tensor, squares: Tensor) -> Tensor:
    """Squared error of the predicted squares [B, C, 8, 8], from noised ones and the codes' embeddings [B, 8, 8, D].

    Times are stratified.
    """
    count = len(squares)
    times = ((torch.randperm(count) + torch.rand(count)) / count * 1000).long().clamp(max=999)
    noisy = scheduler.add_noise(squares, torch.randn_like(squares), times)
    predicted = unet(torch.cat([noisy, context.permute(0, 3, 1, 2)], dim=1), times).sample
    return (predicted - squares).square().mean()


def skill(folder: Path, count: int = 512) -> tuple[float, float]:
    """Return the share of unseen pictures that are strictly correct again, and the mean absolute error of pixels."""
    patches = load_file(IMAGE_AR / "patches.safetensors")["patches"]
    named, pictures = rendered(count, seed=900)
    codes = codes_of(patches, pictures).view(-1, image_ar.GRID, image_ar.GRID)
    made = DiffusionDecoder.from_folder(folder, torch.device("cpu")).pixels(codes)
    right = [judge(picture, caption).strict for picture, caption in zip(to_pictures(made), named, strict=True)]
    return sum(right) / count, float((made.clamp(-1, 1) - pictures).abs().mean() / 2)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=DIFFUSION_DECODER)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.steps, args.seed)
    print("strict pictures of true codes, mean error in [0, 1]:", skill(args.out))


if __name__ == "__main__":
    main()
