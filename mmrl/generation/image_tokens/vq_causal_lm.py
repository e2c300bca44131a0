"""A causal language model of transformers that writes the codes of a codec, in one folder.

    image_tokens.json     {"grid": [8, 8], "first_code": 27, "start": 2}
    language_model/       any `AutoModelForCausalLM`, whose vocabulary is words and codes
    tokenizer/            of the words; it puts by itself what begins a text
    vqvae/                a `VQModel` of diffusers; or instead of it
    patches.safetensors   "patches" [codes, 3, height, width] uint8, for pictures that are made of them

`grid` is rows and columns of a picture; token `first_code` + c stands for code c; `start` is the token between a prompt
and its picture. Weights are safetensors, and nothing in the folder is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import ImageCodec
from mmrl.generation.image_tokens.image_token_model import TokenPrompt

DESCRIPTION = "image_tokens.json"
LANGUAGE_MODEL, TOKENIZER = "language_model", "tokenizer"


@dataclass(frozen=True)
class VQCausalLMSpec:
    """What `image_tokens.json` says."""

    rows: int
    columns: int
    first_code: int
    start: int

    @classmethod
    def read(cls, path: Path) -> VQCausalLMSpec:
        """
        Raises:
            ConfigError: the file is no such description; the message names it and the key.
        """
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as err:
            raise ConfigError(f"{path} cannot be read: {err}") from None
        if not isinstance(told, dict) or set(told) != {"grid", "first_code", "start"}:
            raise ConfigError(f"{path}: expected a map with the keys grid, first_code and start")
        grid = told["grid"]
        if not (isinstance(grid, list) and len(grid) == 2):
            raise ConfigError(f"{path}: grid must be rows and columns, as in [8, 8], not {grid!r}")
        numbers = {"rows": grid[0], "columns": grid[1], "first_code": told["first_code"], "start": told["start"]}
        for key, number in numbers.items():
            least = 1 if key in ("rows", "columns") else 0
            if type(number) is not int or number < least:
                raise ConfigError(f"{path}: {key} must be a whole number of at least {least}, not {number!r}")
        return cls(**numbers)

    def write(self, path: Path) -> None:
        """The inverse of `read`."""
        told = {"grid": [self.rows, self.columns], "first_code": self.first_code, "start": self.start}
        path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


class VQCausalLM:
    """Codes are tokens that follow one another in the language model's vocabulary."""

    def __init__(self, model: Any, tokenizer: Any, codec: ImageCodec, description: VQCausalLMSpec) -> None:
        """
        Raises:
            ConfigError: the parts do not fit one another.
        """
        self.network, self._tokenizer, self._codec, self._description = model, tokenizer, codec, description
        self.grid = (description.rows, description.columns)
        self.codes, self._first = codec.codes, description.first_code
        self.forced_tokens: Mapping[int, tuple[int, ...]] = {}
        vocabulary = model.get_input_embeddings().num_embeddings
        if self._first + self.codes > vocabulary or description.start >= vocabulary:
            raise ConfigError(
                f"{DESCRIPTION}: codes are tokens {self._first} to {self._first + self.codes - 1} and start is token "
                f"{description.start}, but the language model has {vocabulary} tokens"
            )

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """The text, and the token that begins a picture."""
        return TokenPrompt(self._ids(text), self._ids(negative or ""))

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(ids)

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.embed_text(codes + self._first)

    def body(self, **inputs: Any) -> Any:
        return getattr(self.network, self.network.base_model_prefix)(**inputs)

    def code_states(self, states: Tensor) -> Tensor:
        return states

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        head, codes = self.network.get_output_embeddings(), slice(self._first, self._first + self.codes)
        return head.weight[codes], None if head.bias is None else head.bias[codes]

    def is_trainable(self, name: str) -> bool:
        return True

    def linear_layers(self) -> list[str]:
        head = self.network.get_output_embeddings()
        return [p for p, module in self.network.named_modules() if isinstance(module, nn.Linear) and module is not head]

    def decode(self, codes: Tensor) -> list[Image.Image]:
        return self._codec.decode(codes.view(-1, *self.grid))

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        return self._codec.encode(pictures, *self.grid).flatten(1)

    def weights(self, folder: Path) -> Path:
        return folder / LANGUAGE_MODEL

    def save_other_files(self, folder: Path) -> None:
        self._codec.save(folder)
        self._tokenizer.save_pretrained(folder / TOKENIZER)
        self._description.write(folder / DESCRIPTION)

    def _ids(self, text: str) -> tuple[int, ...]:
        return (*self._tokenizer(text)["input_ids"], self._description.start)
