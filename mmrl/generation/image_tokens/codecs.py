"""The codecs of token images: maps between a grid of codes and pictures, read from a model's folder.

    vqvae/                a `VQModel` of diffusers; or instead of it
    patches.safetensors   "patches" [codes, 3, height, width] uint8, for images that are made of patches
    refiner.safetensors   beside patches, once a decoder was trained: what it adds to them
    diffusion_decoder/    beside patches, which then only encode: a diffusion model that draws the codes' picture

The part that makes pixels can be trained (`mmrl.generation.image_tokens.picture_decoder`); codes never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from diffusers import VQModel
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.diffusion_decoder import FOLDER, DiffusionDecoder
from mmrl.generation.image_tokens.image_token_model import PIXELS_TO_IMAGE, to_images, to_pixels

VQVAE, PATCHES, REFINER = "vqvae", "patches.safetensors", "refiner.safetensors"
REFINER_WIDTH = 24
"""The channels between the convolutions of a refiner."""


@dataclass(frozen=True)
class CodecSnippet:
    """The lines of a model card that load a codec, and decode `codes` [rows, columns] to `image`."""

    library: str  # its import
    load: tuple[str, ...]
    count: str  # the expression of the number of codes
    decode: tuple[str, ...]


class ImageCodec(Protocol):
    """A map between the codes of a grid and images."""

    codes: int  # V

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Return the images of codes [B, rows, columns]."""

    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        """Return the codes [B, rows, columns] of images of any size."""

    def save(self, folder: Path) -> None:
        """Write the files that `load_codec` reads."""

    def load_decoder(self, folder: Path) -> None:
        """Take the part that makes pixels from a folder that `save` wrote."""

    def decoder_state(self) -> dict[str, Tensor]:
        """Return a copy of the parameters of the part that makes pixels; empty where none was trained yet."""

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        """Take what `decoder_state` returned."""

    def pixel_decoder(self) -> nn.Module:
        """Return the part that is trained: codes [B, rows, columns] to pixels [B, 3, height, width] around [-1, 1].

        Its parameters are those that `decode` computes with; its last convolution is `last`.
        """

    def snippet(self) -> CodecSnippet:
        """Return the lines of a model card."""


def load_codec(folder: Path, device: torch.device) -> ImageCodec:
    """Return the codec of a model folder; raise ConfigError if it has none, or its tensor is not valid."""
    if (folder / PATCHES).is_file():
        patches = load_file(folder / PATCHES).get("patches")
        if patches is None or patches.dtype != torch.uint8 or patches.ndim != 4 or patches.shape[1] != 3:
            raise ConfigError(f"{folder / PATCHES}: expected a tensor 'patches' [codes, 3, height, width] of bytes")
        if (folder / FOLDER).is_dir():
            return DiffusionCodec(patches.to(device), DiffusionDecoder.from_folder(folder, device))
        codec = PatchCodec(patches.to(device))
        codec.load_decoder(folder)
        return codec
    if not (folder / VQVAE).is_dir():
        raise ConfigError(f"{folder} holds neither {VQVAE}, a VQModel of diffusers, nor {PATCHES}")
    return VQModelCodec(VQModel.from_pretrained(folder / VQVAE, use_safetensors=True).eval().to(device))


class VQModelCodec:
    """The codec of a `VQModel` of diffusers."""

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        self.codes = int(model.config.num_vq_embeddings)
        self._shrink = 2 ** (len(model.config.block_out_channels) - 1)
        self._decoder = VQPixelDecoder(model)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self._decoder(codes))

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        pixels = to_pixels(images, rows * self._shrink, columns * self._shrink)
        latents = self._model.encode(pixels.to(self._model.device, self._model.dtype)).latents
        return self._model.quantize(latents)[2][2].view(len(images), rows, columns)

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(folder / VQVAE, safe_serialization=True)

    def load_decoder(self, folder: Path) -> None:
        if (folder / VQVAE).is_dir():
            saved = VQModel.from_pretrained(folder / VQVAE, use_safetensors=True)
            self._decoder.load_state_dict(VQPixelDecoder(saved).state_dict())

    def decoder_state(self) -> dict[str, Tensor]:
        return _copied(self._decoder)

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        self._decoder.load_state_dict(state)

    def pixel_decoder(self) -> nn.Module:
        return self._decoder

    def snippet(self) -> CodecSnippet:
        return CodecSnippet(
            "from diffusers import VQModel",
            ('codec = VQModel.from_pretrained(f"{folder}/vqvae")',),
            "codec.config.num_vq_embeddings",
            (
                "shape = (1, rows, columns, codec.quantize.vq_embed_dim)",
                "latents = codec.quantize.get_codebook_entry(codes.flatten(), shape)",
                "pixels = codec.decode(latents, force_not_quantize=True).sample[0].permute(1, 2, 0)",
                PIXELS_TO_IMAGE,
            ),
        )


class VQPixelDecoder(nn.Module):
    """The half of a `VQModel` that makes pixels, from the codebook's entries on; the codebook itself stays."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = model.post_quant_conv, model.decoder
        self._frozen = (model.quantize,)  # in a tuple, so that it is no part of this module
        self._spatial = model.config.norm_type == "spatial"

    @property
    def last(self) -> nn.Module:
        """The last convolution."""
        found: nn.Module = self.decoder.conv_out
        return found

    def forward(self, codes: Tensor) -> Tensor:
        """Return [B, 3, height, width]."""
        (quantize,) = self._frozen
        with torch.no_grad():
            latents = quantize.get_codebook_entry(codes.flatten(), (*codes.shape, quantize.vq_embed_dim))
        pixels: Tensor = self.decoder(self.post_quant_conv(latents), latents if self._spatial else None)
        return pixels


class PatchCodec:
    """A codebook of pixel patches: an image is a grid of the patches of its codes, refined if a decoder was trained."""

    def __init__(self, patches: Tensor) -> None:
        """`patches` is [V, 3, height, width] uint8."""
        self._patches = patches
        self.codes = len(patches)
        self._drawn = self.drawn_patches(patches)
        self._decoder: RefinedPatches | None = None

    def drawn_patches(self, patches: Tensor) -> Tensor:
        """Return the patches [V, 3, height, width] uint8 that pictures are made of; `encode` goes by the table."""
        return patches

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        if self._decoder is not None:
            return to_images(self._decoder(codes))
        pixels = joined_patches(self._drawn, codes).permute(0, 2, 3, 1).cpu().numpy()
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
        if self._decoder is not None:
            save_file({k: v.contiguous() for k, v in self._decoder.state_dict().items()}, folder / REFINER)

    def load_decoder(self, folder: Path) -> None:
        if (folder / REFINER).is_file():
            state = load_file(folder / REFINER)
            own = self.pixel_decoder().state_dict()
            if {name: each.shape for name, each in state.items()} != {name: each.shape for name, each in own.items()}:
                raise ConfigError(
                    f"{folder / REFINER} holds another network than a refiner of patches: {sorted(state)}"
                )
            self.pixel_decoder().load_state_dict(state)

    def decoder_state(self) -> dict[str, Tensor]:
        return {} if self._decoder is None else _copied(self._decoder)

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        if state:
            self.pixel_decoder().load_state_dict(state)
        else:
            self._decoder = None

    def pixel_decoder(self) -> RefinedPatches:
        if self._decoder is None:
            self._decoder = RefinedPatches(self._drawn)
        return self._decoder

    def snippet(self) -> CodecSnippet:
        library = "from safetensors.torch import load_file"
        load = 'patches = load_file(f"{folder}/patches.safetensors")["patches"]'
        squares = "squares = patches[codes].permute(0, 3, 1, 4, 2)  # rows, height, columns, width, 3"
        if self._decoder is None:
            image = "image = Image.fromarray(squares.flatten(2, 3).flatten(0, 1).numpy())"
            return CodecSnippet(library, (load,), "len(patches)", (squares, image))
        width = REFINER_WIDTH
        return CodecSnippet(
            library,
            (
                load,
                "conv = torch.nn.Conv2d",
                f"first, between, last = conv(3, {width}, 3, 1, 1), conv({width}, {width}, 3, 1, 1), "
                f"conv({width}, 3, 3, 1, 1)",
                'refiner = torch.nn.ModuleDict({"first": first, "between": between, "last": last})',
                'refiner.load_state_dict(load_file(f"{folder}/refiner.safetensors"))',
            ),
            "len(patches)",
            (
                squares,
                "table = squares.flatten(2, 3).flatten(0, 1).permute(2, 0, 1)[None] / 127.5 - 1",
                "silu = torch.nn.functional.silu",
                "pixels = (table + last(silu(between(silu(first(table))))))[0].permute(1, 2, 0)",
                PIXELS_TO_IMAGE,
            ),
        )


class DiffusionCodec(PatchCodec):
    """A codebook of patches that encodes pictures, and a frozen diffusion model that draws those of codes."""

    def __init__(self, patches: Tensor, decoder: DiffusionDecoder) -> None:
        """`patches` is [V, 3, height, width] uint8.

        Raises:
            ConfigError: the decoder knows another number of codes.
        """
        super().__init__(patches)
        if decoder.codes != self.codes:
            raise ConfigError(f"{PATCHES} has {self.codes} codes, and the decoder of {FOLDER} knows {decoder.codes}")
        self._diffusion = decoder

    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self._diffusion.pixels(codes))

    def save(self, folder: Path) -> None:
        super().save(folder)
        self._diffusion.save(folder)

    def load_decoder(self, folder: Path) -> None:
        """Do nothing: a frozen decoder is the same in all folders of a run."""

    def pixel_decoder(self) -> RefinedPatches:
        """
        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"models: a diffusion decoder ({FOLDER}/) stays frozen: leave the model with head: pixels out"
        )

    def snippet(self) -> CodecSnippet:
        return CodecSnippet(
            "from diffusers import DDIMScheduler, UNet2DModel",
            (
                "from zlib import crc32",
                "from safetensors.torch import load_file",
                f'decoder = f"{{folder}}/{FOLDER}"',
                "unet = UNet2DModel.from_pretrained(decoder).float()",
                "scheduler = DDIMScheduler.from_pretrained(decoder)",
                'embeddings = load_file(f"{decoder}/codes.safetensors")["embeddings"].float()',
                'scheduler.set_timesteps(json.loads(Path(decoder, "decoder.json").read_text())["steps"])',
            ),
            "len(embeddings)",
            (
                "noise = torch.Generator().manual_seed(crc32(codes.numpy().tobytes()))",
                "squares = torch.randn(unet.config.out_channels, *codes.shape, generator=noise)[None]",
                "context = embeddings[codes].permute(2, 0, 1)[None]",
                "for time in scheduler.timesteps:",
                "    predicted = unet(torch.cat([squares, context], dim=1), time).sample.detach()",
                "    squares = scheduler.step(predicted, time, squares).prev_sample",
                "side = round((squares.shape[1] / 3) ** 0.5)",
                "pixels = torch.nn.functional.pixel_shuffle(squares, side)[0].permute(1, 2, 0)",
                PIXELS_TO_IMAGE,
            ),
        )


class RefinedPatches(nn.Module):
    """A decoder that adds a convolutional network's correction to a table of patches; it begins at 0.

    Untrained, its pictures are those of the table to the byte.
    """

    def __init__(self, patches: Tensor) -> None:
        """`patches` is [V, 3, height, width] uint8."""
        super().__init__()
        self._patches = (patches,)  # in a tuple, so that it is no part of the state
        self.first = nn.Conv2d(3, REFINER_WIDTH, 3, padding=1)
        self.between = nn.Conv2d(REFINER_WIDTH, REFINER_WIDTH, 3, padding=1)
        self.last = nn.Conv2d(REFINER_WIDTH, 3, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]  # there is one
        self.to(patches.device)

    def forward(self, codes: Tensor) -> Tensor:
        """Return [B, 3, height, width]."""
        table = joined_patches(self._patches[0], codes).to(self.last.weight.dtype) / 127.5 - 1
        correction: Tensor = self.last(F.silu(self.between(F.silu(self.first(table)))))
        return table + correction


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().to("cpu", copy=True) for name, each in network.state_dict().items()}


def joined_patches(patches: Tensor, codes: Tensor) -> Tensor:
    """Return the patches [V, 3, h, w] of codes [B, rows, columns] side by side, [B, 3, rows * h, columns * w]."""
    return patches[codes].permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
