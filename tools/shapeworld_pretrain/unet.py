"""Pre-trains the embedded UNet pipeline on the captions and pictures of seen kinds, by regressing v.

`python -m tools.shapeworld_pretrain.unet`
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiffusionPipeline, UNet2DConditionModel, UNetMotionModel
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTokenizer

from mmrl_shapeworld import models, shipped_models, unets
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.shipped_models import GENERATORS
from mmrl_shapeworld.splits import captions
from tools.shapeworld_pretrain.pictures import rendered
from tools.shapeworld_pretrain.steps import advance, build_optimizers, follow, set_rate

EMPTY_SHARE = 0.1
"""Texts replaced by the empty one, so that guidance works."""
ENDS = ("conv_in", "conv_out", "time_embedding", "embed")
"""Parts that AdamW trains."""


@dataclass(frozen=True)
class TrainItem:
    """Training data of a UNet: N examples."""

    clean: Tensor  # [N, 4, 8, 8]; scaled latents; [N, 4, F, 8, 8] of clips
    tokens: Tensor  # [N, 12] int64; 14 of clips
    context: Tensor  # [N, C, 8, 8]; what the UNet sees beside the noisy latent; C may be 0


def fit(
    unet: UNet2DConditionModel | UNetMotionModel,
    encoder: CLIPTextModel,
    lesson: TrainItem,
    empty: Tensor,  # [1, 12]; the tokens of no text
    steps: int,
    batch: int = 64,
    muon: float = 0.02,
    adamw: float = 2e-3,
) -> nn.ModuleList:
    """Train both in place for a number of steps; returns their moving averages. The global generator decides the draws.

    `muon` and `adamw` are learning rates: of the matrices and kernels inside blocks, and of all else.
    """
    trained = nn.ModuleList([unet, encoder]).train()
    average = copy.deepcopy(trained).requires_grad_(False)
    optimizers = build_optimizers(trained, ENDS, muon, adamw)
    scheduler = unets.scheduler()
    running, began = 0.0, time.process_time()
    for step in range(steps):
        set_rate(optimizers, step, steps)
        rows = torch.randint(len(lesson.clean), (batch,))
        ids = torch.where(torch.rand(batch, 1) < EMPTY_SHARE, empty, lesson.tokens[rows])
        loss = v_loss(unet, encoder, scheduler, lesson.clean[rows], ids, lesson.context[rows])
        loss.backward()
        advance(optimizers, trained)
        follow(average, trained, step)
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            spent = time.process_time() - began
            print(f"step {step + 1}/{steps} loss {running:.4f} after {spent:.0f} CPU-seconds", flush=True)
    return average.eval()


def v_loss(
    unet: UNet2DConditionModel | UNetMotionModel,
    encoder: CLIPTextModel,
    scheduler: DDIMScheduler,
    clean: Tensor,  # [B, 4, 8, 8]; [B, 4, F, 8, 8] of clips
    ids: Tensor,  # [B, 12]
    context: Tensor,  # [B, C, 8, 8]
) -> Tensor:
    """Squared error of v (arXiv:2202.00512) at stratified times."""
    noise = torch.randn_like(clean)
    times = ((torch.randperm(len(clean)) + torch.rand(len(clean))) / len(clean) * 1000).long().clamp(max=999)
    noisy = scheduler.add_noise(clean, noise, times)
    target = scheduler.get_velocity(clean, noise, times)
    text = encoder(ids).last_hidden_state
    if clean.ndim == 5:  # frames of clips
        text = text.repeat_interleave(clean.shape[2], dim=0)
    return (unet(torch.cat([noisy, context], dim=1), times, text).sample - target).square().mean()


def tokenize(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """[N, 12] token ids."""
    length = models.CAPTION_TOKENS
    return tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: Tensor, drawn: bool = False) -> Tensor:
    """Latents [N, 4, 8, 8] as the autoencoder gives them, unscaled: their means, or drawn with its spread."""
    parts = [vae.encode(part).latent_dist for part in pictures.split(250)]
    return torch.cat([part.sample() if drawn else part.mode() for part in parts])


def start() -> tuple[CLIPTokenizer, CLIPTextModel]:
    """A tokenizer for the words of all UNet pipelines, and a text encoder that knows those of captions already."""
    tokenizer = models.clip_tokenizer(unets.every_word())
    known = CLIPTokenizer.from_pretrained(shipped_models.PIPELINE / "tokenizer")
    teacher = CLIPTextModel.from_pretrained(shipped_models.PIPELINE / "text_encoder")
    return tokenizer, unets.taught_words(unets.text_encoder(tokenizer), tokenizer, teacher, known)


def train(folder: Path, steps: int, seed: int = 0, examples: int = 16_000) -> None:
    """Train text to image and save the whole pipeline."""
    torch.manual_seed(seed)
    vae = AutoencoderKL.from_pretrained(shipped_models.PIPELINE / "vae").requires_grad_(False).eval()
    tokenizer, encoder = start()
    denoiser = unets.unet()
    named, pictures = rendered(examples, seed=310 + seed, kinds=SEEN_KINDS)
    clean = encode(vae, pictures) * vae.config.scaling_factor
    lesson = TrainItem(clean, tokenize(tokenizer, [str(caption) for caption in named]), clean[:, :0])
    print(f"{examples} examples after {time.process_time():.0f} CPU-seconds", flush=True)
    average = fit(denoiser, encoder, lesson, tokenize(tokenizer, [""]), steps)
    pipe = unets.build("unet", tokenizer, average[1], vae, average[0])
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    print("strict, partial credit:", skill(pipe), f"after {time.process_time():.0f} CPU-seconds", flush=True)


@torch.no_grad()
def skill(pipe: DiffusionPipeline, prompts: int = 192, steps: int = 10) -> tuple[float, float]:
    """Mean strict correctness and partial credit on development captions, without guidance."""
    chosen = captions("development")[:prompts]
    pictures = pipe(
        [str(caption) for caption in chosen],
        num_inference_steps=steps,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).images
    verdicts = [judge(picture, caption) for picture, caption in zip(pictures, chosen, strict=True)]
    return math.fsum(v.strict for v in verdicts) / prompts, math.fsum(v.score for v in verdicts) / prompts


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=GENERATORS["unet"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.steps, args.seed)


if __name__ == "__main__":
    main()
