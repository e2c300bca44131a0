"""An independent judge of pictures: a small network that counts things of each kind. Never trained on.

It shares nothing with the rule checker: it was taught on rendered and decoded pictures by
`tools.shapeworld_pretrain.observer`, so what fools the rules need not fool it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl_shapeworld.captions import KINDS, Caption
from mmrl_shapeworld.shipped_models import OBSERVER

MOST = 4
"""Counts from 0 to 4 are separate classes; larger counts are class 4."""


class Observer(nn.Module):
    """[N, 3, 32, 32] in [-1, 1] to log-probabilities [N, kinds, 5] of how many things of each kind there are."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _block(3, width, 1),
            _block(width, 2 * width, 2),
            _block(2 * width, 2 * width, 1),
            _block(2 * width, 4 * width, 2),
            _block(4 * width, 4 * width, 1),
        )
        self.head = nn.Linear(4 * width, len(KINDS) * (MOST + 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Log-probabilities."""
        features = self.layers(pictures).sum((2, 3)) / 16  # a sum, not a mean: counts add up
        return self.head(features).view(-1, len(KINDS), MOST + 1).log_softmax(-1)


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def counts(caption: Caption) -> list[int]:
    """Return the number of things of each kind that a caption names, in the order of `KINDS`."""
    return [sum(c.count for c in caption.clauses if (c.colour, c.shape) == kind) for kind in KINDS]


def tensor(picture: Image.Image) -> Tensor:
    """[3, 32, 32] in [-1, 1]; larger pictures are averaged down."""
    small = picture.convert("RGB")
    if small.size != (32, 32):
        small = small.resize((32, 32), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small, np.float32) / 127.5 - 1).permute(2, 0, 1)


@torch.inference_mode()
def agreement(model: Observer, picture: Image.Image, caption: Caption) -> float:
    """The probability, in [0, 1], that the picture holds just the things that the caption names."""
    seen = model(tensor(picture)[None])[0]  # [kinds, 5]
    wanted = torch.tensor(counts(caption))
    return float(seen.gather(1, wanted[:, None]).sum().exp())


def save(model: Observer, path: Path) -> None:
    """Write the weights in half precision."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.half() if v.is_floating_point() else v for k, v in model.state_dict().items()}, path)


@cache
def load(path: Path = OBSERVER) -> Observer:
    """The shipped observer, in evaluation mode."""
    model = Observer()
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(path).items()})
    return model.eval().requires_grad_(False)
