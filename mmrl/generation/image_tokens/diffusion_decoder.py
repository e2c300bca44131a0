"""A diffusion model that draws the picture of a grid of codes, as X-Omni's decoder does (arXiv:2507.22058).

    diffusion_decoder/    a `UNet2DModel` of diffusers, its `scheduler_config.json` of a `DDIMScheduler`, and
    decoder.json          {"steps": 4}, the number of denoising steps
    codes.safetensors     "embeddings" [codes, channels], what the UNet sees of a code

A place of the UNet is a place of the grid: it reads the noised square of pixels there, and beside it the embedding of
its code. Weights are safetensors, and no gradient ever reaches them.
"""

from __future__ import annotations

import copy
import json
import zlib
from pathlib import Path
from typing import Any

import torch
from diffusers import DDIMScheduler, UNet2DModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from mmrl.errors import ConfigError

FOLDER, SETTINGS, CODES = "diffusion_decoder", "decoder.json", "codes.safetensors"


class DiffusionDecoder:
    """A frozen denoiser from codes to pixels, which takes a few deterministic DDIM steps (arXiv:2010.02502).

    The first noise of a picture is drawn from a seed that is made of its codes: a picture is a function of its codes,
    whichever others are decoded with them, and different grids have different noise.
    """

    def __init__(self, unet: Any, scheduler: DDIMScheduler, embeddings: Tensor, steps: int) -> None:
        """`embeddings` is [V, channels]; `unet` reads these channels after those of the squares that it predicts.

        Raises:
            ConfigError: the channels of the UNet do not fit, or `steps` is below 1 or above the scheduler's.
        """
        squares, channels = int(unet.config.out_channels), embeddings.shape[1]
        self._side = round((squares / 3) ** 0.5)
        if squares != 3 * self._side**2:
            raise ConfigError(f"{FOLDER}: out_channels must be 3 for each pixel of a square, as in 48, not {squares}")
        if unet.config.in_channels != squares + channels:
            raise ConfigError(
                f"{FOLDER}: the UNet reads {unet.config.in_channels} channels, but squares of {squares} and embeddings "
                f"of {channels} are {squares + channels}: {CODES} belongs to another UNet"
            )
        most = int(scheduler.config.num_train_timesteps)
        if not 1 <= steps <= most:
            raise ConfigError(f"{FOLDER}/{SETTINGS}: steps must be a whole number from 1 to {most}, not {steps}")
        self._unet = unet.eval().requires_grad_(False)
        self._scheduler, self._steps = scheduler, steps
        self._embeddings = embeddings.detach().to(unet.device, torch.float32)

    @classmethod
    def from_folder(cls, folder: Path, device: torch.device) -> DiffusionDecoder:
        """Load the files above from `folder`/diffusion_decoder, in float32.

        Raises:
            ConfigError: a file is missing or not valid.
        """
        inside = folder / FOLDER
        try:
            settings = json.loads((inside / SETTINGS).read_text(encoding="utf-8"))
        except (ValueError, OSError) as err:
            raise ConfigError(f"{inside / SETTINGS} cannot be read: {err}") from None
        if not isinstance(settings, dict) or set(settings) != {"steps"} or type(settings["steps"]) is not int:
            raise ConfigError(f"{inside / SETTINGS}: expected a map with the key steps, a whole number")
        try:
            embeddings = load_file(inside / CODES).get("embeddings")
            unet = UNet2DModel.from_pretrained(inside, use_safetensors=True, torch_dtype=torch.float32)
            scheduler = DDIMScheduler.from_pretrained(inside)
        except OSError as err:
            raise ConfigError(f"{inside} holds no UNet2DModel, DDIMScheduler and {CODES}: {err}") from None
        if embeddings is None or embeddings.ndim != 2:
            raise ConfigError(f"{inside / CODES}: expected a tensor 'embeddings' [codes, channels]")
        return cls(unet.to(device), scheduler, embeddings, settings["steps"])

    @property
    def codes(self) -> int:
        """V, the number of codes that have an embedding."""
        return len(self._embeddings)

    @torch.no_grad()
    def pixels(self, codes: Tensor) -> Tensor:
        """Return the pictures [B, 3, side * rows, side * columns], around [-1, 1], of codes [B, rows, columns]."""
        context = self._embeddings[codes].permute(0, 3, 1, 2)
        squares = noise_of(codes, int(self._unet.config.out_channels)).to(context)
        self._scheduler.set_timesteps(self._steps)
        for time in self._scheduler.timesteps:
            predicted = self._unet(torch.cat([squares, context], dim=1), time).sample
            squares = self._scheduler.step(predicted, time, squares, eta=0.0).prev_sample
        return F.pixel_shuffle(squares, self._side)

    def save(self, folder: Path) -> None:
        """Write what `from_folder` reads, in half precision."""
        inside = folder / FOLDER
        inside.mkdir(parents=True, exist_ok=True)
        copy.deepcopy(self._unet).half().save_pretrained(inside, safe_serialization=True)
        self._scheduler.save_pretrained(inside)
        save_file({"embeddings": self._embeddings.half().cpu().contiguous()}, inside / CODES)
        (inside / SETTINGS).write_text(json.dumps({"steps": self._steps}) + "\n", encoding="utf-8")


def noise_of(codes: Tensor, channels: int) -> Tensor:
    """Return standard normal noise [B, channels, rows, columns] float32 on the CPU for codes [B, rows, columns] int64.

    The seed of a picture is the CRC-32 of its codes' bytes.
    """
    drawn = []
    for each in codes.cpu().contiguous():
        generator = torch.Generator().manual_seed(zlib.crc32(each.numpy().tobytes()))
        drawn.append(torch.randn(channels, *each.shape, generator=generator))
    return torch.stack(drawn)
