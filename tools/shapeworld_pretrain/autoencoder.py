"""Pre-trains the autoencoder: 32×32 pictures to 4×8×8 latents and back."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional as F

from mmrl_shapeworld import models
from mmrl_shapeworld.checker import judge
from tools.shapeworld_pretrain.pictures import rendered, to_pictures


def train(folder: Path, minutes: float, seed: int = 0, batch: int = 48, lr: float = 2e-3, kl: float = 1e-5) -> float:
    """Train for a given time and save. Returns the share of strictly correct reconstructions."""
    torch.manual_seed(seed)
    vae = models.autoencoder()
    _, pictures = rendered(20_000, seed=100)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=lr, betas=(0.9, 0.99))
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1:
        spent = (time.monotonic() - started) / (60 * minutes)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * min(1, spent)))
        x = pictures[torch.randint(len(pictures), (batch,))]
        posterior = vae.encode(x).latent_dist
        out = vae.decode(posterior.sample()).sample
        loss = reconstruction_loss(out, x) + kl * posterior.kl().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"autoencoder step {step} ({spent:.0%}) loss {loss.item():.4f}", flush=True)
    normalise_latents(vae, pictures[:2000])
    vae.eval().requires_grad_(False).save_pretrained(folder, safe_serialization=True)
    return reconstruction_share(vae)


def reconstruction_loss(out: Tensor, x: Tensor) -> Tensor:
    """L1 + squared error: the first for crisp edges, the second against rare large misses."""
    return F.l1_loss(out, x) + F.mse_loss(out, x)


@torch.no_grad()
def normalise_latents(vae: AutoencoderKL, pictures: Tensor) -> None:
    """Choose shift and scale so that latents have mean 0 and spread 1."""
    latents = vae.encode(pictures).latent_dist.sample()
    vae.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())


@torch.no_grad()
def reconstruction_share(vae: AutoencoderKL, count: int = 1000) -> float:
    """Share of unseen pictures whose reconstruction is strictly correct."""
    captions, pictures = rendered(count, seed=200)
    out = vae.decode(vae.encode(pictures).latent_dist.mode()).sample
    return sum(judge(p, c).strict for p, c in zip(to_pictures(out), captions, strict=True)) / count
