"""Pre-trains the embedded autoregressive generator: captions, then the codes of pictures that they describe.

ShapeWorld draws without blending, so a few hundred different squares of 4×4 pixels make up nearly all pictures. The
most frequent ones are the codebook, and nothing has to be trained for it. (Being a codec, it was made from all kinds;
the language model sees captions and pictures of seen kinds alone: `captions.HELDOUT_KINDS` stay unseen.)

Equal seeds and steps make equal weights, on one thread of one machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from mmrl_shapeworld import image_ar
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.splits import captions
from tools.shapeworld_pretrain.muon import Muon
from tools.shapeworld_pretrain.pictures import rendered, to_pictures
from tools.shapeworld_pretrain.steps import advance

EMPTY_SHARE = 0.1
"""Captions replaced by the empty one, so that guidance works."""
CAPTION_TOKENS = 10
"""`<s>`, the words of the longest caption, `<picture>`."""


def train(
    folder: Path,
    steps: int = 560,
    seed: int = 0,
    batch: int = 48,
    muon: float = 0.02,
    adamw: float = 3e-3,
    pictures: int = 24_000,
) -> None:
    """Train for a number of steps, and save the generator. Both learning rates fall to zero."""
    torch.manual_seed(seed)
    patches = world_codebook()
    model = image_ar.language_model()
    describe_codes(model, patches)
    named, pictured = rendered(pictures, seed=600, kinds=SEEN_KINDS)
    prompts, codes = prompt_ids([str(caption) for caption in named]), codes_of(patches, pictured)
    empty = prompt_ids([""])
    optimizers = build_optimizers(model, muon, adamw)
    model.train()
    for step in range(steps):
        rate = min(1, (step + 1) / 20) * min(1.0, 1.4 * (1 - step / steps))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
        rows = torch.randint(len(codes), (batch,))
        conditions = torch.where(torch.rand(batch, 1) < EMPTY_SHARE, empty, prompts[rows])
        loss = loss_of(model, conditions, codes[rows])
        loss.backward()
        advance(optimizers, model)
        if (step + 1) % 50 == 0:
            print(f"painter step {step + 1} of {steps} loss {loss.item():.3f}", flush=True)
    image_ar.save(folder, model.eval(), patches)


@cache
def world_codebook() -> Tensor:
    """[512, 3, 4, 4] uint8, of pictures of all kinds."""
    return codebook(rendered(4_000, seed=400)[1])


def codebook(pictures: Tensor, count: int = image_ar.CODES) -> Tensor:
    """[N, 3, 32, 32] in [-1, 1] to [count, 3, 4, 4] uint8: the most frequent patches, the commonest first."""
    found, times = _patches(pictures).unique(dim=0, return_counts=True)
    return found[times.argsort(descending=True, stable=True)[:count]]


def codes_of(patches: Tensor, pictures: Tensor) -> Tensor:
    """[N, 3, 32, 32] in [-1, 1] to [N, 64] int64, row by row: of each square the nearest patch."""
    squares = _patches(pictures).flatten(1).float()
    nearest = [torch.cdist(part, patches.flatten(1).float()).argmin(1) for part in squares.split(20_000)]
    return torch.cat(nearest).view(len(pictures), -1)


def decoded(patches: Tensor, codes: Tensor) -> Tensor:
    """[N, 64] to [N, 3, 32, 32] in [-1, 1]."""
    squares = patches[codes].view(len(codes), image_ar.GRID, image_ar.GRID, -1).permute(0, 3, 1, 2)
    return F.pixel_shuffle(squares.float() / 127.5 - 1, image_ar.PATCH)


def _patches(pictures: Tensor) -> Tensor:  # [N, 3, 32, 32] in [-1, 1] -> [N * 64, 3, 4, 4] uint8
    squares = F.pixel_unshuffle(((pictures + 1) * 127.5).round().to(torch.uint8), image_ar.PATCH)
    return squares.permute(0, 2, 3, 1).reshape(-1, 3, image_ar.PATCH, image_ar.PATCH)


@torch.no_grad()
def describe_codes(model: LlamaForCausalLM, patches: Tensor) -> None:
    """Begin with embeddings and outputs of codes that are alike where patches are: a random turn of their pixels."""
    pixels = patches.flatten(1).float()
    pixels = (pixels - pixels.mean(0)) / (pixels - pixels.mean(0)).square().mean().sqrt()
    for weights in (model.model.embed_tokens.weight, model.lm_head.weight):
        turn = torch.randn(pixels.shape[1], weights.shape[1]) / pixels.shape[1] ** 0.5
        weights[image_ar.FIRST_CODE : image_ar.FIRST_CODE + len(patches)] = model.config.initializer_range * (
            pixels @ turn
        )


def build_optimizers(model: nn.Module, muon: float, adamw: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for all else that is trained."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    inner = sorted(name for name, p in named.items() if p.ndim == 2 and ".layers." in name)
    rest = [p for name, p in named.items() if name not in inner]
    optimizers: list[torch.optim.Optimizer] = [
        Muon([named[name] for name in inner], lr=muon),
        torch.optim.AdamW(rest, lr=adamw, betas=(0.9, 0.99), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def prompt_ids(texts: list[str]) -> Tensor:  # [N, 10] int64, padded on the left
    """Return captions as token rows of the generator."""
    words = image_ar.tokenizer()
    ids = words(texts, padding="max_length", max_length=CAPTION_TOKENS - 1, return_tensors="pt").input_ids
    return F.pad(ids, (0, 1), value=image_ar.SPECIAL.index(image_ar.PICTURE))


def loss_of(model: LlamaForCausalLM, prompts: Tensor, codes: Tensor) -> Tensor:
    """Mean negative log-likelihood of the codes, in nats."""
    mask = F.pad((prompts != image_ar.SPECIAL.index(image_ar.PAD)).long(), (0, codes.shape[1] - 1), value=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    ids = torch.cat([prompts, codes[:, :-1] + image_ar.FIRST_CODE], dim=1)
    states = model.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
    logits = model.lm_head(states[:, prompts.shape[1] - 1 :])
    return F.cross_entropy(logits.flatten(0, 1), codes.flatten() + image_ar.FIRST_CODE)


@torch.no_grad()
def skill(folder: Path, count: int = 256, greedy: bool = False) -> tuple[float, float]:
    """Mean strict correctness and partial credit on development captions, at temperature 1 or greedily."""
    model = LlamaForCausalLM.from_pretrained(folder / "language_model").eval()
    patches = load_file(folder / "patches.safetensors")["patches"]
    chosen = captions("development")[:count]
    prompts = prompt_ids([str(caption) for caption in chosen])
    torch.manual_seed(0)
    written = model.generate(
        prompts,
        attention_mask=(prompts != image_ar.SPECIAL.index(image_ar.PAD)).long(),
        do_sample=not greedy,
        max_new_tokens=image_ar.GRID**2,
        suppress_tokens=list(range(image_ar.FIRST_CODE)),
    )
    made = to_pictures(decoded(patches, written[:, prompts.shape[1] :] - image_ar.FIRST_CODE))
    verdicts = [judge(picture, caption) for picture, caption in zip(made, chosen, strict=True)]
    return sum(v.strict for v in verdicts) / count, sum(v.score for v in verdicts) / count
