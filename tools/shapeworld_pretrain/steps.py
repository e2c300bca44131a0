"""Parts of pre-training: two optimizers of UNets, schedules of the learning rate, an update, an average of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tools.shapeworld_pretrain.muon import Muon


def build_optimizers(trained: nn.Module, ends: Sequence[str], muon: float, adamw: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices and kernels, AdamW for norms, biases and parts whose names hold one of `ends`.

    `muon` and `adamw` are learning rates.
    """
    named = dict(trained.named_parameters())
    wide = {name for name, p in named.items() if p.ndim >= 2 and len(p) > 1 and p[0].numel() > 1}
    inner = sorted(name for name in wide if not any(end in name for end in ends))
    others = [p for name, p in named.items() if name not in inner]
    optimizers: list[torch.optim.Optimizer] = [
        Muon([named[name] for name in inner], lr=muon),
        torch.optim.AdamW(others, lr=adamw, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: Sequence[torch.optim.Optimizer], step: int, steps: int) -> None:
    """Up in 30 steps, level, and from two sevenths of the way on down to zero."""
    _scale_rate(optimizers, min(1.0, (step + 1) / 30) * min(1.0, 1.4 * (1 - step / steps)))


def set_rate_by_time(optimizers: Sequence[torch.optim.Optimizer], step: int, spent: float, rise: int = 20) -> None:
    """Up in `rise` steps, level, and in the last fifth of the time down to zero; `spent` is the share of the time."""
    _scale_rate(optimizers, min(1, (step + 1) / rise) * min(1.0, max(0.0, 1.25 * (1 - spent))))


def advance(optimizers: Sequence[torch.optim.Optimizer], trained: nn.Module) -> None:
    """Update the weights along the gradients, clipped at norm 1, and clear the gradients."""
    nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def follow(average: nn.Module, trained: nn.Module, step: int) -> None:
    """Move the average towards the weights: over twenty steps at first, over two hundred later."""
    decay = min(0.995, (step + 1) / (step + 20))
    torch._foreach_lerp_(list(average.parameters()), list(trained.parameters()), 1 - decay)


def _scale_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
