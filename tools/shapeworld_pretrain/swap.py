"""Pre-trains the embedded pipeline that swaps a thing in a clip: its autoencoder, then the transformer on pairs.

`python -m tools.shapeworld_pretrain.swap`. In some of the pairs the new thing keeps the colour or the shape of the old
one, as pairs that a machine made are not perfect: what they teach of identity is left to reinforcement.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanVACEPipeline, WanVACETransformer3DModel
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, T5EncoderModel

from mmrl.data.media.decode import load_image, load_mask, load_video
from mmrl_shapeworld import swapping, unets
from mmrl_shapeworld.models import TEXT_WIDTH
from mmrl_shapeworld.motion import FRAMES, PIXELS, draw_clip
from mmrl_shapeworld.scenes import Scene, draw
from mmrl_shapeworld.shipped_models import GENERATORS, PIPELINE
from mmrl_shapeworld.swaps import Swap, SwapVerdict, judge_swap, sample_pair, sample_swap, samples
from tools.shapeworld_pretrain.autoencoder import reconstruction_loss
from tools.shapeworld_pretrain.pictures import to_tensor
from tools.shapeworld_pretrain.steps import advance, build_optimizers, follow, set_rate

ALL_MASKS = 0.5
"""The share of examples with masks in all frames."""
KL = 1e-5
VAE_ENDS = ("conv_in", "conv_out", "quant_conv")
ENDS = ("patch_embedding", "condition_embedder", "scale_shift_table", "norm_out", "transformer.proj_out")


@dataclass(frozen=True)
class Pairs:
    """N pairs of clips of F frames and what the pipeline shows of them, as latents [N, 8, F, 8, 8]."""

    source: Tensor
    target: Tensor
    inactive: Tensor  # the source clip without the thing that goes
    reactive: Tensor  # that thing alone
    reference: Tensor  # [N, 8, 1, 8, 8]
    masks: Tensor  # [N, 16, F, 8, 8]; every pixel of a latent pixel
    marked: Tensor  # [N] int64; the frame whose mask is shown
    nothing: Tensor  # [8]; the latent of no thing at all, in every place [8, 8, 8]


@contextmanager
def single_frames() -> Iterator[None]:
    """Let the autoencoder's convolutions read the present frame alone in a `with` block, of clips of one frame."""
    before = WanCausalConv3d.forward

    def present(self: WanCausalConv3d, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        padding = (0, self.kernel_size[1] // 2, self.kernel_size[2] // 2)
        return F.conv3d(x, self.weight[:, :, -1:], self.bias, self.stride, padding)

    WanCausalConv3d.forward = present
    try:
        yield
    finally:
        WanCausalConv3d.forward = before


def pictures_of(swap: Swap) -> dict[str, Tensor]:
    """Return what the pipeline encodes of a swap, [F, 3, 32, 32] each, in [-1, 1]; grey is 0."""
    source = to_tensor(draw_clip(swap.source))
    masks = torch.from_numpy(np.stack(swap.masks(all_frames=True)))[:, None].float()
    return {
        "source": source,
        "inactive": source * (1 - masks),
        "reactive": source * masks,
        "reference": to_tensor([draw(Scene((swap.portrait,)))]),
    }


def train_autoencoder(steps: int, seed: int, batch: int = 48, swaps: int = 1500) -> AutoencoderKLWan:
    """Train on single frames, on clips without their thing, and on things alone."""
    rng = np.random.default_rng(810 + seed)
    pictures = torch.cat([picture for _ in range(swaps) for picture in pictures_of(sample_swap(rng)).values()])
    vae = swapping.autoencoder().train()
    average = copy.deepcopy(vae).requires_grad_(False)
    optimizers = build_optimizers(vae, VAE_ENDS, 0.02, 2e-3)
    for step in range(steps):
        set_rate(optimizers, step, steps)
        x = pictures[torch.randint(len(pictures), (batch,))][:, :, None]
        posterior = vae.encode(x).latent_dist
        loss = reconstruction_loss(vae.decode(posterior.sample()).sample, x) + KL * posterior.kl().mean()
        loss.backward()
        advance(optimizers, vae)
        follow(average, vae, step)
        if (step + 1) % 50 == 0:
            print(f"autoencoder {step + 1}/{steps} loss {loss.item():.4f} {time.process_time():.0f} s", flush=True)
    latents = encode(average, pictures[:: max(1, len(pictures) // 2000)])
    average.register_to_config(
        latents_mean=latents.mean((0, 2, 3)).tolist(), latents_std=latents.std((0, 2, 3)).tolist()
    )
    return average.eval()


def train_decoder(vae: AutoencoderKLWan, steps: int, seed: int, batch: int = 48, swaps: int = 600) -> None:
    """Train the decoder further, in place, on whole frames; latents stay what they are."""
    rng = np.random.default_rng(830 + seed)
    clips = [draw_clip(each.source) for each in (sample_swap(rng) for _ in range(swaps))]
    pictures = to_tensor([frame for clip in clips for frame in clip])
    decoder = vae.decoder.train().requires_grad_(True)
    average = copy.deepcopy(decoder).requires_grad_(False)
    optimizers = build_optimizers(decoder, VAE_ENDS, 0.02, 2e-3)
    for step in range(steps):
        set_rate(optimizers, step, steps)
        x = pictures[torch.randint(len(pictures), (batch,))][:, :, None]
        with torch.no_grad():
            latents = vae.encode(x).latent_dist.sample()
        loss = reconstruction_loss(vae.decode(latents).sample, x)
        loss.backward()
        advance(optimizers, decoder)
        follow(average, decoder, step)
        if (step + 1) % 50 == 0:
            print(f"decoder {step + 1}/{steps} loss {loss.item():.4f} {time.process_time():.0f} s", flush=True)
    decoder.load_state_dict(average.state_dict())
    vae.eval().requires_grad_(False)


@torch.no_grad()
def encode(vae: AutoencoderKLWan, pictures: Tensor) -> Tensor:
    """[N, 8, 8, 8]; the means of the latents of pictures, scaled as the pipeline scales them."""
    parts = [vae.encode(part[:, :, None]).latent_dist.mode()[:, :, 0] for part in pictures.split(250)]
    mean, std = (torch.tensor(each)[:, None, None] for each in (vae.config.latents_mean, vae.config.latents_std))
    return (torch.cat(parts) - mean) / std


def pairs_of(vae: AutoencoderKLWan, count: int, seed: int) -> Pairs:
    """Return pairs of clips as latents."""
    rng = np.random.default_rng(910 + seed)
    made = [sample_pair(rng) for _ in range(count)]
    encoded = [pictures_of(swap) | {"target": to_tensor(draw_clip(second))} for swap, second in made]
    swaps = [swap for swap, _ in made]

    def clips(name: str) -> Tensor:
        stacked = torch.stack([each[name] for each in encoded])
        return encode(vae, stacked.flatten(0, 1)).unflatten(0, stacked.shape[:2]).transpose(1, 2).contiguous()

    masks = torch.from_numpy(np.stack([np.stack(swap.masks(all_frames=True)) for swap in swaps])).float()
    cell = swapping.SCALE
    folded = masks.unflatten(2, (-1, cell)).unflatten(4, (-1, cell)).permute(0, 3, 5, 1, 2, 4).flatten(1, 2)
    return Pairs(
        **{name: clips(name) for name in ("source", "target", "inactive", "reactive", "reference")},
        masks=folded,
        marked=torch.tensor([swap.marked for swap in swaps]),
        nothing=encode(vae, torch.zeros(1, 3, PIXELS, PIXELS))[0],
    )


def batch_of(pairs: Pairs, rows: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    """Return clean latents [B, 8, 1 + F, 8, 8] and the context [B, 32, 1 + F, 8, 8]; `every` [B]: all masks seen."""
    frames = torch.arange(pairs.masks.shape[2])
    seen = (every[:, None] | (frames == pairs.marked[rows][:, None]))[:, None, :, None, None]
    inactive = torch.where(seen, pairs.inactive[rows], pairs.source[rows])
    reactive = torch.where(seen, pairs.reactive[rows], pairs.nothing[:, None])
    reference = pairs.reference[rows]
    context = torch.cat([inactive, reactive, pairs.masks[rows] * seen], dim=1)
    first = torch.cat(
        [reference, torch.zeros_like(reference), torch.zeros_like(context[:, 2 * len(pairs.nothing) :, :1])], 1
    )
    return torch.cat([reference, pairs.target[rows]], dim=2), torch.cat([first, context], dim=2)


def train_transformer(pairs: Pairs, steps: int, batch: int = 32) -> WanVACETransformer3DModel:
    """Train by flow matching at logit-normal times; returns the moving average of the weights."""
    denoiser = swapping.transformer().train()
    average = copy.deepcopy(denoiser).requires_grad_(False)
    optimizers = build_optimizers(denoiser, ENDS, 0.02, 2e-3)
    running, silence = 0.0, torch.zeros(batch, 1, 2 * TEXT_WIDTH)
    for step in range(steps):
        set_rate(optimizers, step, steps)
        rows = torch.randint(len(pairs.marked), (batch,))
        clean, context = batch_of(pairs, rows, torch.rand(batch) < ALL_MASKS)
        noise, sigma = torch.randn_like(clean), torch.sigmoid(torch.randn(batch))
        level = sigma[:, None, None, None, None]
        noisy = (1 - level) * clean + level * noise
        velocity = denoiser(noisy, sigma * 1000, silence, control_hidden_states=context).sample
        loss = (velocity - (noise - clean)).square().mean()
        loss.backward()
        advance(optimizers, denoiser)
        follow(average, denoiser, step)
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            print(f"transformer {step + 1}/{steps} loss {running:.4f} {time.process_time():.0f} s", flush=True)
    return average.eval()


@torch.no_grad()
def skill(pipe: WanVACEPipeline, split: str, count: int = 48, steps: int = 6) -> list[float]:
    """Mean identity, motion and background error on the first swaps of a split."""
    verdicts: list[SwapVerdict] = []
    for number, sample in enumerate(samples(split)[:count]):
        conditions = sample.conditions
        frames = pipe(
            "",
            video=load_video(conditions["video"]),
            mask=[load_mask(each) for each in conditions["mask"]],
            reference_images=[load_image(each) for each in conditions["reference_images"]],
            height=PIXELS,
            width=PIXELS,
            num_frames=FRAMES - 1,
            num_inference_steps=steps,
            guidance_scale=1.0,
            max_sequence_length=1,
            generator=torch.Generator().manual_seed(number),
            output_type="pil",
        ).frames[0]
        verdicts.append(judge_swap(frames, Swap.from_dict(sample.answer)))
    facts = ("identity", "motion", "background_error")
    return [round(float(np.mean([getattr(verdict, name) for verdict in verdicts])), 4) for name in facts]


def train(folder: Path, autoencoder_steps: int, steps: int, seed: int = 0, examples: int = 4_000) -> None:
    """Train both parts and save the whole pipeline."""
    torch.manual_seed(seed)
    with single_frames():
        vae = train_autoencoder(autoencoder_steps, seed)
        train_decoder(vae, autoencoder_steps // 2, seed)
        pairs = pairs_of(vae, examples, seed)
    print(f"{examples} pairs after {time.process_time():.0f} CPU-seconds", flush=True)
    denoiser = train_transformer(pairs, steps)
    encoder = T5EncoderModel.from_pretrained(PIPELINE / "text_encoder_3")
    pipe = swapping.build(AutoTokenizer.from_pretrained(PIPELINE / "tokenizer_3"), encoder, vae, denoiser)
    pipe.set_progress_bar_config(disable=True)
    unets.save(pipe, folder)
    for split in ("swap-development", "swap-development-masked"):
        print(split, "identity, motion, background error:", skill(pipe, split), flush=True)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--autoencoder-steps", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=GENERATORS["swap"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.out, args.autoencoder_steps, args.steps, args.seed)


if __name__ == "__main__":
    main()
