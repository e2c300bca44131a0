"""Image codecs: codes to images and back, for language models without an image decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from diffusers import VQModel
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import to_images, to_pixels

VQVAE, PATCHES = "vqvae", "patches.safetensors"


class ImageCodec(Protocol):
    """A map between the codes of a grid and images. It is never trained."""

    codes: int  # V

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Return the images of codes [B, rows, columns]."""
        ...

    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        """Return the codes [B, rows, columns] of images of any size."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files that `load_codec` reads."""
        ...


def load_codec(folder: Path, device: torch.device) -> ImageCodec:
    """Return the codec of a model folder.

    Raises:
        ConfigError: the folder has no codec, or its tensor is not valid.
    """
    if (folder / PATCHES).is_file():
        patches = load_file(folder / PATCHES).get("patches")
        if patches is None or patches.dtype != torch.uint8 or patches.ndim != 4 or patches.shape[1] != 3:
            raise ConfigError(f"{folder / PATCHES}: expected a tensor 'patches' [codes, 3, height, width] of bytes")
        return PatchCodec(patches.to(device))
    if not (folder / VQVAE).is_dir():
        raise ConfigError(f"{folder} holds neither {VQVAE}, a VQModel of diffusers, nor {PATCHES}")
    return VQModelCodec(VQModel.from_pretrained(folder / VQVAE, use_safetensors=True).eval().to(device))


class VQModelCodec:
    """The codec of a `VQModel` of diffusers."""

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        self.codes = int(model.config.num_vq_embeddings)
        self._shrink = 2 ** (len(model.config.block_out_channels) - 1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        model = self._model
        width = model.quantize.vq_embed_dim
        latents = model.quantize.get_codebook_entry(codes.flatten(), (*codes.shape, width))
        guide = latents if model.config.norm_type == "spatial" else None
        return to_images(model.decoder(model.post_quant_conv(latents), guide))

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        pixels = to_pixels(images, rows * self._shrink, columns * self._shrink)
        latents = self._model.encode(pixels.to(self._model.device, self._model.dtype)).latents
        return self._model.quantize(latents)[2][2].view(len(images), rows, columns)

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(folder / VQVAE, safe_serialization=True)


class PatchCodec:
    """A codebook of pixel patches: an image is a grid of the patches of its codes."""

    def __init__(self, patches: Tensor) -> None:
        """`patches` is [V, 3, height, width] uint8."""
        self._patches = patches
        self.codes = len(patches)

    def decode(self, codes: Tensor) -> list[Image.Image]:
        rows = self._patches[codes].permute(0, 3, 1, 4, 2, 5)  # [B, 3, rows, height, columns, width]
        pixels = rows.flatten(4, 5).flatten(2, 3).permute(0, 2, 3, 1).cpu().numpy()
        return [Image.fromarray(image) for image in pixels]

    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        height, width = self._patches.shape[2:]
        pixels = (to_pixels(images, rows * height, columns * width).to(self._patches.device) + 1) * 127.5
        squares = F.unfold(pixels, (height, width), stride=(height, width)).transpose(1, 2)
        distances = torch.cdist(squares, self._patches.flatten(1).float()[None])
        return distances.argmin(-1).view(len(images), rows, columns)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"patches": self._patches.cpu().contiguous()}, folder / PATCHES)
