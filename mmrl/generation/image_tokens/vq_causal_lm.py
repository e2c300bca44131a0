"""A causal language model of transformers that generates the codes of an image codec, in one folder.

    image_tokens.json     {"grid": [8, 8], "first_code": 27, "start": 2}
    language_model/       any `AutoModelForCausalLM` with text tokens and codes in its vocabulary
    tokenizer/            the text tokenizer, which adds the tokens at the beginning of a text
    vqvae/                a `VQModel` of diffusers; or instead of it
    patches.safetensors   "patches" [codes, 3, height, width] uint8, for images that are made of patches

`grid` is the rows and columns of an image; token `first_code` + c represents code c; `start` is the token between the
prompt and its image. Weights are safetensors, and the folder contains no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from diffusers import VQModel
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmrl.config.policy import ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import (
    PIXELS_TO_IMAGE,
    ImageTokenModel,
    SnippetRequest,
    TokenPrompt,
    quote,
    to_images,
    to_pixels,
)

SPEC_FILE = "image_tokens.json"
LANGUAGE_MODEL, TOKENIZER = "language_model", "tokenizer"


@dataclass(frozen=True)
class VQCausalLMSpec:
    """The content of `image_tokens.json`."""

    rows: int
    columns: int
    first_code: int
    start: int

    @classmethod
    def read(cls, path: Path) -> VQCausalLMSpec:
        """Read the file; raise ConfigError with its name and the key if it is not valid."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as err:
            raise ConfigError(f"{path} cannot be read: {err}") from None
        if not isinstance(content, dict) or set(content) != {"grid", "first_code", "start"}:
            raise ConfigError(f"{path}: expected a map with the keys grid, first_code and start")
        grid = content["grid"]
        if not (isinstance(grid, list) and len(grid) == 2):
            raise ConfigError(f"{path}: grid must be rows and columns, as in [8, 8], not {grid!r}")
        numbers = {"rows": grid[0], "columns": grid[1], "first_code": content["first_code"], "start": content["start"]}
        for key, number in numbers.items():
            least = 1 if key in ("rows", "columns") else 0
            if type(number) is not int or number < least:
                raise ConfigError(f"{path}: {key} must be a whole number of at least {least}, not {number!r}")
        return cls(**numbers)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        content = {"grid": [self.rows, self.columns], "first_code": self.first_code, "start": self.start}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class VQCausalLM(ImageTokenModel):
    """A language model whose codes are consecutive tokens of its vocabulary, with a separate image codec."""

    library: ClassVar[str | None] = None
    export_notes: ClassVar[tuple[str, ...]] = (
        "No one class of a library loads it whole: transformers loads `language_model/` and `tokenizer/`, and the "
        "code above, which needs no mmrl, generates codes with them and decodes the codes to pixels.",
    )

    def __init__(self, network: Any, tokenizer: Any, codec: ImageCodec, spec: VQCausalLMSpec) -> None:
        """
        Raises:
            ConfigError: the vocabulary is smaller than the codes need.
        """
        self.network, self._tokenizer, self._codec, self._spec = network, tokenizer, codec, spec
        self.grid = (spec.rows, spec.columns)
        self.codes, self._first = codec.codes, spec.first_code
        vocabulary = network.get_input_embeddings().num_embeddings
        if self._first + self.codes > vocabulary or spec.start >= vocabulary:
            raise ConfigError(
                f"{SPEC_FILE}: codes are tokens {self._first} to {self._first + self.codes - 1} and start is token "
                f"{spec.start}, but the language model has {vocabulary} tokens"
            )

    @classmethod
    def from_folder(cls, folder: Path, config: ImageTokenConfig, device: torch.device) -> VQCausalLM:
        if config.size is not None:
            raise ConfigError(f"policy.size: {config.model} has a single image size, that of its grid: leave it out")
        dtype = getattr(torch, config.dtype)
        network = AutoModelForCausalLM.from_pretrained(folder / LANGUAGE_MODEL, dtype=dtype, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)
        codec = load_codec(folder, device)
        return cls(network.to(device), tokenizer, codec, VQCausalLMSpec.read(folder / SPEC_FILE))

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """Return the ids of a prompt and the token that begins an image."""
        return TokenPrompt(self._ids(text), self._ids(negative or ""))

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.embed_text(codes + self._first)

    def body(self, **inputs: Any) -> Any:
        return getattr(self.network, self.network.base_model_prefix)(**inputs)

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        head, codes = self.network.get_output_embeddings(), slice(self._first, self._first + self.codes)
        return head.weight[codes], None if head.bias is None else head.bias[codes]

    def is_trainable(self, name: str) -> bool:
        return True

    def linear_layers(self) -> list[str]:
        head = self.network.get_output_embeddings()
        modules = self.network.named_modules()
        return [path for path, module in modules if isinstance(module, nn.Linear) and module is not head]

    def decode(self, codes: Tensor) -> list[Image.Image]:
        return self._codec.decode(codes.view(-1, *self.grid))

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        return self._codec.encode(images, *self.grid).flatten(1)

    def weights_folder(self, folder: Path) -> Path:
        return folder / LANGUAGE_MODEL

    def save_other_files(self, folder: Path) -> None:
        self._codec.save(folder)
        self._tokenizer.save_pretrained(folder / TOKENIZER)
        self._spec.write(folder / SPEC_FILE)

    def snippet(self, request: SnippetRequest) -> str:
        if isinstance(self._codec, PatchCodec):
            library = "from safetensors.torch import load_file"
            codec = 'patches = load_file(f"{folder}/patches.safetensors")["patches"]'
            count = "len(patches)"
            decode = [
                "squares = patches[codes].permute(0, 3, 1, 4, 2)  # rows, height, columns, width, 3",
                "image = Image.fromarray(squares.flatten(2, 3).flatten(0, 1).numpy())",
            ]
        else:
            library = "from diffusers import VQModel"
            codec = 'codec = VQModel.from_pretrained(f"{folder}/vqvae")'
            count = "codec.config.num_vq_embeddings"
            decode = [
                "shape = (1, rows, columns, codec.quantize.vq_embed_dim)",
                "latents = codec.quantize.get_codebook_entry(codes.flatten(), shape)",
                "pixels = codec.decode(latents, force_not_quantize=True).sample[0].permute(1, 2, 0)",
                PIXELS_TO_IMAGE,
            ]
        read = 'torch.tensor([[*tokenizer({})["input_ids"], spec["start"]]])'
        transformers = "from transformers import AutoModelForCausalLM, AutoTokenizer"
        language_model = f'f"{{folder}}/language_model", dtype=torch.{request.dtype}'
        outside = f"[n for n in range(model.config.vocab_size) if not first <= n < first + {count}]"
        return "\n".join(
            [
                "import json",
                "from pathlib import Path",
                "",
                "import torch",
                *sorted([library, "from PIL import Image", transformers]),
                "",
                f"folder = {quote(request.folder)}",
                'spec = json.loads(Path(folder, "image_tokens.json").read_text())',
                '(rows, columns), first = spec["grid"], spec["first_code"]',
                f"model = AutoModelForCausalLM.from_pretrained({language_model})",
                'tokenizer = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")',
                codec,
                f"ids = {read.format(quote(request.prompt))}",
                *request.empty_prompt_lines(read),
                "tokens = model.generate(",
                "    ids,",
                "    attention_mask=torch.ones_like(ids),",
                "    max_new_tokens=rows * columns,",
                f"    suppress_tokens={outside},",
                "    eos_token_id=None,",
                "    pad_token_id=0,",
                *request.guidance_lines("empty", "torch.ones_like(empty)"),
                f"    {request.generate_arguments},",
                ")",
                "codes = (tokens[0, ids.shape[1] :] - first).view(rows, columns)",
                *decode,
            ]
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return (*self._tokenizer(text)["input_ids"], self._spec.start)


VQVAE, PATCHES = "vqvae", "patches.safetensors"


class ImageCodec(Protocol):
    """A map between the codes of a grid and images. It is never trained."""

    codes: int  # V

    def decode(self, codes: Tensor) -> list[Image.Image]:
        """Return the images of codes [B, rows, columns]."""

    def encode(self, images: Sequence[Image.Image], rows: int, columns: int) -> Tensor:
        """Return the codes [B, rows, columns] of images of any size."""

    def save(self, folder: Path) -> None:
        """Write the files that `load_codec` reads."""


def load_codec(folder: Path, device: torch.device) -> ImageCodec:
    """Return the codec of a model folder; raise ConfigError if it has none, or its tensor is not valid."""
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
