"""Pre-trains the embedded generator of scales: captions, then the codes of pictures of four sizes.

The patches of the finest scale are the most frequent ones, as those of `image_ar`. Coarser pictures are blended when
they are made smaller, so their patches are means of clusters.

Equal seeds and steps make equal weights, on one thread of one machine.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.generation.image_tokens import ImageTokenPolicy
from mmrl.generation.image_tokens.codecs import PatchCodec
from mmrl.generation.image_tokens.image_token_model import to_pixels
from mmrl.generation.image_tokens.next_scale_lm import NextScaleLM
from mmrl.generation.image_tokens.scale_forward import forward_scales
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import image_ar, scale_model
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.splits import caption_sample, captions
from tools.shapeworld_pretrain.image_ar import EMPTY_SHARE, build_optimizers, codebook, describe_codes
from tools.shapeworld_pretrain.pictures import rendered, to_pictures
from tools.shapeworld_pretrain.steps import advance, set_rate

SIDE = image_ar.PATCH


def train(
    folder: Path,
    steps: int = 500,
    seed: int = 0,
    batch: int = 48,
    muon: float = 0.02,
    adamw: float = 3e-3,
    pictures: int = 24_000,
) -> None:
    """Train for a number of steps, and save the generator. Both learning rates fall to zero."""
    torch.manual_seed(seed)
    patches = scale_codebook(rendered(4_000, seed=400)[1])
    network = scale_model.language_model()
    describe_codes(network, patches)
    model = NextScaleLM(network, image_ar.tokenizer(), PatchCodec(patches), scale_model.SPEC)
    named, pictured = rendered(pictures, seed=600, kinds=SEEN_KINDS)
    codes = torch.cat([model.encode(to_pictures(part)) for part in pictured.split(500)])
    prompts = [model.prompt(str(caption), None) for caption in named]
    optimizers = build_optimizers(network, muon, adamw)
    network.train()
    for step in range(steps):
        set_rate(optimizers, step, steps)
        rows = torch.randint(len(codes), (batch,))
        empty = torch.rand(batch) < EMPTY_SHARE
        texts = [prompts[row].uncond if none else prompts[row].cond for row, none in zip(rows, empty, strict=True)]
        logits = F.linear(forward_scales(model, texts, codes[rows]), *model.code_head())
        loss = F.cross_entropy(logits.flatten(0, 1), codes[rows].flatten())
        loss.backward()
        advance(optimizers, network)
        if (step + 1) % 50 == 0:
            print(f"scales step {step + 1} of {steps} loss {loss.item():.3f}", flush=True)
    scale_model.save(folder, network.eval(), patches)


def scale_codebook(pictures: Tensor) -> Tensor:
    """[N, 3, 32, 32] in [-1, 1] to [codes, 3, 4, 4] uint8: patches of pictures of each size, the coarsest first."""
    drawn = to_pictures(pictures)
    parts = []
    for (rows, columns), count in zip(scale_model.SCALES[:-1], scale_model.PER_SCALE[:-1], strict=True):
        smaller = to_pixels(drawn, rows * SIDE, columns * SIDE)
        squares = F.pixel_unshuffle((smaller + 1) * 127.5, SIDE).permute(0, 2, 3, 1).reshape(-1, 3 * SIDE * SIDE)
        parts.append(cluster_means(squares[torch.randperm(len(squares))[:20_000]], count))
    return torch.cat([*(part.view(-1, 3, SIDE, SIDE) for part in parts), codebook(pictures, scale_model.PER_SCALE[-1])])


def cluster_means(points: Tensor, count: int, rounds: int = 12) -> Tensor:
    """Return [count, d] uint8, the means of clusters of points [N, d] by Lloyd's algorithm."""
    different = points.round().unique(dim=0)
    means = different[torch.randperm(len(different))[:count]]
    for _ in range(rounds):
        nearest = torch.cdist(points, means).argmin(1)
        sums = torch.zeros_like(means).index_add_(0, nearest, points)
        sizes = torch.bincount(nearest, minlength=count)[:, None]
        means = torch.where(sizes > 0, sums / sizes.clamp(min=1), means)
    return means.round().to(torch.uint8)


def skill(folder: Path, count: int = 256, **sampling: float) -> tuple[float, float]:
    """Mean strict correctness and partial credit on development captions."""
    config = ImageTokenConfig(model=str(folder), train="full", device="cpu")
    policy = ImageTokenPolicy.from_config(config, ImageTokenSamplingConfig(**sampling))
    chosen = captions("development")[:count]
    samples = [caption_sample(caption, str(number)) for number, caption in enumerate(chosen)]
    made = policy.rollout([RolloutRequest(sample, 1, number) for number, sample in enumerate(samples)], seed=0).media
    verdicts = [judge(picture, caption) for picture, caption in zip(made, chosen, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count
