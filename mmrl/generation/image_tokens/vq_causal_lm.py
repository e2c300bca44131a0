"""A causal language model of transformers that generates the codes of an image codec, in one folder.

    image_tokens.json     {"grid": [8, 8], "first_code": 27, "start": 2}
    language_model/       any `AutoModelForCausalLM` with text tokens and codes in its vocabulary
    tokenizer/            the text tokenizer, which adds the tokens at the beginning of a text
    vqvae/                a `VQModel` of diffusers; or instead of it
    patches.safetensors   "patches" [codes, 3, height, width] uint8, for images that are made of patches
    refiner.safetensors   beside patches, once a decoder was trained (`mmrl.generation.image_tokens.codecs`)

`grid` is the rows and columns of an image; token `first_code` + c represents code c; `start` is the token between the
prompt and its image. Weights are safetensors, and the folder contains no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from mmrl.config.policy import ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import ImageCodec, load_codec
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel, SnippetRequest, TokenPrompt, quote

SPEC_FILE = "image_tokens.json"
LANGUAGE_MODEL, TOKENIZER = "language_model", "tokenizer"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise ConfigError with its name if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as err:
        raise ConfigError(f"{path} cannot be read: {err}") from None


def check_whole(path: Path, key: str, number: Any, least: int) -> None:
    """Raise ConfigError with the file and the key unless a value is a whole number of at least `least`."""
    if type(number) is not int or number < least:
        raise ConfigError(f"{path}: {key} must be a whole number of at least {least}, not {number!r}")


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
        content = read_json(path)
        if not isinstance(content, dict) or set(content) != {"grid", "first_code", "start"}:
            raise ConfigError(f"{path}: expected a map with the keys grid, first_code and start")
        grid = content["grid"]
        if not (isinstance(grid, list) and len(grid) == 2):
            raise ConfigError(f"{path}: grid must be rows and columns, as in [8, 8], not {grid!r}")
        numbers = {"rows": grid[0], "columns": grid[1], "first_code": content["first_code"], "start": content["start"]}
        for key, number in numbers.items():
            check_whole(path, key, number, least=1 if key in ("rows", "columns") else 0)
        return cls(**numbers)

    def write(self, path: Path) -> None:
        """Write the file that `read` reads."""
        content = {"grid": [self.rows, self.columns], "first_code": self.first_code, "start": self.start}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class VQCausalLM(ImageTokenModel):
    """A language model whose codes are consecutive tokens of its vocabulary, with a separate image codec."""

    library: ClassVar[str | None] = None
    spec_file: ClassVar[str] = SPEC_FILE
    """The file of the folder that describes its codes."""
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
                f"{self.spec_file}: codes are tokens {self._first} to {self._first + self.codes - 1} and start is "
                f"token {spec.start}, but the language model has {vocabulary} tokens"
            )

    @classmethod
    def from_folder(cls, folder: Path, config: ImageTokenConfig, device: torch.device) -> VQCausalLM:
        dtype = getattr(torch, config.dtype)
        network = AutoModelForCausalLM.from_pretrained(folder / LANGUAGE_MODEL, dtype=dtype, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)
        codec = cls.codec_of(folder, device)
        return cls(network.to(device), tokenizer, codec, cls.spec_of(folder, config, codec))

    @classmethod
    def spec_of(cls, folder: Path, config: ImageTokenConfig, codec: ImageCodec) -> VQCausalLMSpec:
        """Return the folder's grid and tokens.

        Raises:
            ConfigError: the file is not valid, or `config.size` does not fit it.
        """
        if config.size is not None:
            raise ConfigError(f"policy.size: {config.model} has a single image size, that of its grid: leave it out")
        return VQCausalLMSpec.read(folder / SPEC_FILE)

    @classmethod
    def codec_of(cls, folder: Path, device: torch.device) -> ImageCodec:
        """Return the codec of a model folder; a model with another one overrides it."""
        return load_codec(folder, device)

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

    def pixel_decoder(self) -> nn.Module:
        return self._codec.pixel_decoder()

    def decoder_state(self) -> dict[str, Tensor]:
        return self._codec.decoder_state()

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        self._codec.load_decoder_state(state)

    def load_pixel_decoder(self, folder: Path) -> None:
        self._codec.load_decoder(folder)

    def save_other_files(self, folder: Path) -> None:
        self._codec.save(folder)
        self._tokenizer.save_pretrained(folder / TOKENIZER)
        self._spec.write(folder / self.spec_file)

    def snippet(self, request: SnippetRequest) -> str:
        codec = self._codec.snippet()
        read = 'torch.tensor([[*tokenizer({})["input_ids"], spec["start"]]])'
        transformers = "from transformers import AutoModelForCausalLM, AutoTokenizer"
        language_model = f'f"{{folder}}/language_model", dtype=torch.{request.dtype}'
        outside = f"[n for n in range(model.config.vocab_size) if not first <= n < first + {codec.count}]"
        return "\n".join(
            [
                "import json",
                "from pathlib import Path",
                "",
                "import torch",
                *sorted([codec.library, "from PIL import Image", transformers]),
                "",
                f"folder = {quote(request.folder)}",
                'spec = json.loads(Path(folder, "image_tokens.json").read_text())',
                '(rows, columns), first = spec["grid"], spec["first_code"]',
                f"model = AutoModelForCausalLM.from_pretrained({language_model})",
                'tokenizer = AutoTokenizer.from_pretrained(f"{folder}/tokenizer")',
                *codec.load,
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
                *codec.decode,
            ]
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return (*self._tokenizer(text)["input_ids"], self._spec.start)
