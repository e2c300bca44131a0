"""Pre-trains the text encoders and the transformer of the embedded pipeline by flow matching.

Only captions and pictures of seen kinds are shown: `captions.HELDOUT_KINDS` stay unseen.
"""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from torch import Tensor, nn

from mmrl_shapeworld import models
from mmrl_shapeworld.captions import SEEN_KINDS, Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.splits import captions
from tools.shapeworld_pretrain.pictures import rendered
from tools.shapeworld_pretrain.steps import advance

EMPTY_SHARE = 0.1
"""Captions replaced by the empty one, so that guidance works."""
LONG_EVERY, LONG_TOKENS, LONG_SHRINK = 16, 256, 8
"""Every 16th batch has the 256 silent T5 tokens that diffusers pads to by default (and an eighth of the rows),
so that the plain `pipe(prompt)` works as well as the cheap `pipe(prompt, max_sequence_length=1)`."""


def train(
    folder: Path,
    vae_folder: Path,
    minutes: float,
    seed: int = 0,
    batch: int = 64,
    lr: float = 1e-3,
    start: Path | None = None,
) -> None:
    """Train for a given time, printing strict correctness as it goes, and save the whole pipeline.

    `start` is a pipeline to go on from instead of a new one.
    """
    torch.manual_seed(seed)
    vae = AutoencoderKL.from_pretrained(vae_folder)
    if start is None:
        pipe = models.build_pipeline([str(c) for c in captions("train")], vae)
    else:
        pipe = StableDiffusion3Pipeline.from_pretrained(start, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    named, pictures = rendered(40_000, seed=300, kinds=SEEN_KINDS)
    latents, tokens = encode(vae, pictures), tokenize(pipe, [str(c) for c in named])
    empty = tokenize(pipe, [""])
    trained = nn.ModuleList([pipe.transformer, pipe.text_encoder, pipe.text_encoder_2]).train()
    average = copy.deepcopy(trained).requires_grad_(False)
    optimizers = build_optimizers(trained)
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1:
        spent = (time.monotonic() - started) / (60 * minutes)
        falling = 0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * min(1, spent)))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1, (step + 1) / 100) * falling
        long = step % LONG_EVERY == LONG_EVERY - 1
        rows = torch.randint(len(latents), (batch // LONG_SHRINK if long else batch,))
        ids = torch.where(torch.rand(len(rows), 1) < EMPTY_SHARE, empty, tokens[rows])
        loss = flow_matching_loss(pipe, latents[rows], ids, LONG_TOKENS if long else 1)
        loss.backward()
        advance(optimizers, trained)
        step += 1
        decay = min(0.999, step / (step + 20))
        torch._foreach_lerp_(list(average.parameters()), list(trained.parameters()), 1 - decay)
        if step % 200 == 0:
            print(f"generator step {step} ({spent:.0%}) loss {loss.item():.4f}", flush=True)
        if step % 1000 == 0 or spent >= 1:
            strict, score = _with_average(pipe, trained, average, lambda: skill(pipe))
            print(f"generator step {step} ({spent:.0%}) strict {strict:.3f} score {score:.3f}", flush=True)
            _with_average(pipe, trained, average, lambda: pipe.save_pretrained(folder, safe_serialization=True))


def build_optimizers(trained: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside attention and feed-forward layers, AdamW for all else."""
    inner = {n for n, p in trained.named_parameters() if p.ndim == 2 and any(k in n for k in ("attn", "ff", "mlp"))}
    named = dict(trained.named_parameters())
    return [
        torch.optim.Muon([named[n] for n in sorted(inner)], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for n, p in named.items() if n not in inner], betas=(0.9, 0.99), weight_decay=0.01),
    ]


def flow_matching_loss(pipe: StableDiffusion3Pipeline, clean: Tensor, ids: Tensor, silent_tokens: int) -> Tensor:
    """Squared error of the velocity at logit-normal times (Stable Diffusion 3, arXiv:2403.03206)."""
    noise = torch.randn_like(clean)
    sigma = torch.sigmoid(torch.randn(len(clean)))
    expanded = sigma[:, None, None, None]
    noisy = (1 - expanded) * clean + expanded * noise
    text, pooled = encode_text(pipe, ids, silent_tokens)
    velocity = pipe.transformer(noisy, text, pooled, sigma * 1000).sample
    return (velocity - (noise - clean)).square().mean()


def encode_text(pipe: StableDiffusion3Pipeline, ids: Tensor, silent_tokens: int) -> tuple[Tensor, Tensor]:
    """Return the embeddings of `pipe.encode_prompt`, with gradients and without running T5, whose output is zero."""
    outputs = [encoder(ids, output_hidden_states=True) for encoder in (pipe.text_encoder, pipe.text_encoder_2)]
    text = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    silent = text.new_zeros(len(text), silent_tokens, text.shape[-1])
    return torch.cat([text, silent], dim=1), torch.cat([output.text_embeds for output in outputs], dim=-1)


def tokenize(pipe: StableDiffusion3Pipeline, texts: list[str]) -> Tensor:
    """[N, 12] token ids."""
    return pipe.tokenizer(
        texts, padding="max_length", max_length=models.CAPTION_TOKENS, truncation=True, return_tensors="pt"
    ).input_ids


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Normalised latents [N, 4, 8, 8]: the means, since two channels carry nothing but the prior's noise."""
    parts = [vae.encode(part).latent_dist.mode() for part in pictures.split(500)]
    return (torch.cat(parts) - vae.config.shift_factor) * vae.config.scaling_factor


@torch.no_grad()
def skill(pipe: StableDiffusion3Pipeline, prompts: int = 192, steps: int = 10) -> tuple[float, float]:
    """Mean strict correctness and partial credit on development captions, without guidance."""
    chosen: list[Caption] = captions("development")[:prompts]
    pictures = pipe(
        [str(caption) for caption in chosen],
        num_inference_steps=steps,
        guidance_scale=1.0,
        max_sequence_length=1,
        generator=torch.Generator().manual_seed(0),
    ).images
    verdicts = [judge(picture, caption) for picture, caption in zip(pictures, chosen, strict=True)]
    return sum(v.strict for v in verdicts) / prompts, sum(v.score for v in verdicts) / prompts


def _with_average(pipe, trained: nn.ModuleList, average: nn.ModuleList, use):
    """Run `use` while the pipeline holds the averaged weights."""
    names = ("transformer", "text_encoder", "text_encoder_2")
    for name, module in zip(names, average.eval(), strict=True):
        setattr(pipe, name, module)
    try:
        return use()
    finally:
        for name, module in zip(names, trained, strict=True):
            setattr(pipe, name, module)
