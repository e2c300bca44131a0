"""Pre-trains the observer on rendered pictures, half of them through the autoencoder, all disturbed a little."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional as F

from mmrl_shapeworld import observer
from tools.shapeworld_pretrain.pictures import rendered


def train(path: Path, vae_folder: Path, minutes: float, seed: int = 0, batch: int = 128, lr: float = 3e-3) -> float:
    """Train for a given time and save. Returns the share of unseen pictures whose every count is right."""
    torch.manual_seed(seed)
    captions, pictures = rendered(24_000, seed=400)
    vae = AutoencoderKL.from_pretrained(vae_folder)
    with torch.no_grad():
        half = pictures[::2]
        pictures[::2] = torch.cat([vae.decode(vae.encode(p).latent_dist.mode()).sample for p in half.split(500)])
    labels = torch.tensor([observer.counts(caption) for caption in captions])
    model = observer.Observer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    kept = len(pictures) - 2000
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1:
        spent = (time.monotonic() - started) / (60 * minutes)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * min(1, spent)))
        rows = torch.randint(kept, (batch,))
        loss = F.nll_loss(model(disturb(pictures[rows])).flatten(0, 1), labels[rows].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(f"observer step {step} ({spent:.0%}) loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        right = (model(pictures[kept:]).argmax(-1) == labels[kept:]).all(-1)
    observer.save(model, path)
    return right.float().mean().item()


def disturb(pictures: Tensor) -> Tensor:
    """Noise, brightness and shifts by up to two pixels."""
    shift = torch.randint(-2, 3, (2,)).tolist()
    moved = torch.roll(pictures, shift, dims=(2, 3))
    bright = 1 + 0.1 * torch.randn(len(pictures), 1, 1, 1)
    return (moved * bright + 0.05 * torch.randn_like(moved)).clamp(-1, 1)
