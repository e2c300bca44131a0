"""Pictures and captions to pre-train on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl_shapeworld.captions import KINDS, Caption, Kind, sample_caption, sample_scene
from mmrl_shapeworld.scenes import Scene, draw


def scenes(count: int, seed: int, kinds: tuple[Kind, ...] = KINDS) -> Iterator[tuple[Caption, Scene]]:
    """Random captions about the given kinds, each with a scene that satisfies it."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        caption = sample_caption(rng, kinds)
        yield caption, sample_scene(caption, rng)


def to_tensor(pictures: list[Image.Image]) -> Tensor:
    """[N, 3, H, W] float32 in [-1, 1], as diffusers' autoencoders take it."""
    stacked = np.stack([np.asarray(picture, np.float32) for picture in pictures])
    return torch.from_numpy(stacked / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def to_pictures(tensor: Tensor) -> list[Image.Image]:
    """The inverse of `to_tensor`."""
    pixels = ((tensor.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(picture) for picture in pixels]


def rendered(count: int, seed: int, kinds: tuple[Kind, ...] = KINDS) -> tuple[list[Caption], Tensor]:
    """Captions and their pictures [count, 3, 32, 32]."""
    pairs = list(scenes(count, seed, kinds))
    return [caption for caption, _ in pairs], to_tensor([draw(scene, 32) for _, scene in pairs])
