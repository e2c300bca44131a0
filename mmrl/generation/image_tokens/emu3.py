"""Emu3 (arXiv:2409.18869) as transformers has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import TokenPrompt, to_images, to_pixels

BODY = "model.text_model."


class Emu3:
    """Codes are tokens among the words, and each row of a picture ends with a token of its own.

    What follows the last row (end of frame, of image, of text) is always the same and is not written.
    """

    def __init__(self, model: Any, processor: Any, size: tuple[int, int] | None) -> None:
        """`size` is height and width in pixels; None: what the processor asks for by default.

        Raises:
            ConfigError: the size is no whole number of codes.
        """
        self.network, self._processor = model, processor
        shrink = model.model.vqmodel.spatial_scale_factor
        if size is None:
            rows, columns = processor.calculate_generate_size(processor.ratio, processor.image_area, shrink)
        else:
            rows, columns = size[0] // shrink, size[1] // shrink
            if (rows * shrink, columns * shrink) != tuple(size):
                raise ConfigError(f"policy.size: {list(size)} must be multiples of {shrink}, the side of a code")
        self.grid, self._shrink = (int(rows), int(columns)), shrink
        mapping = model.vocabulary_mapping
        self.codes = len(mapping.img2bpe)
        self._token_of = torch.tensor([mapping.img2bpe[code] for code in range(self.codes)])
        self.forced_tokens: Mapping[int, tuple[int, ...]] = {
            row * self.grid[1]: (int(mapping.eol_token_id),) for row in range(1, self.grid[0])
        }

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """The text, and the size that is asked for."""
        return TokenPrompt(self._ids(text), self._ids(negative or ""))

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(ids)

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.embed_text(self._token_of.to(codes.device)[codes])

    def body(self, **inputs: Any) -> Any:
        return self.network.model.text_model(**inputs)

    def code_states(self, states: Tensor) -> Tensor:
        return states

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        head = self.network.lm_head
        codes = self._token_of.to(head.weight.device)
        return head.weight[codes], None if head.bias is None else head.bias[codes]

    def is_trainable(self, name: str) -> bool:
        return name.startswith((BODY, "lm_head."))

    def linear_layers(self) -> list[str]:
        linear = [path for path, module in self.network.named_modules() if isinstance(module, nn.Linear)]
        return [path for path in linear if path.startswith(BODY)]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self.network.model.vqmodel.decode(codes.view(-1, *self.grid)))

    @torch.no_grad()
    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        pixels = to_pixels(pictures, self.grid[0] * self._shrink, self.grid[1] * self._shrink)
        sizes = torch.tensor([pixels.shape[2:]] * len(pictures))
        found = self.network.model.vqmodel.encode(
            pixels.to(self.network.device, self.network.dtype), sizes
        ).image_tokens
        return torch.stack([each.flatten() for each in found])

    def weights(self, folder: Path) -> Path:
        return folder

    def save_other_files(self, folder: Path) -> None:
        self._processor.save_pretrained(folder)

    def _ids(self, text: str) -> tuple[int, ...]:
        words = self._processor.tokenizer
        rows, columns = self.grid
        asked = f"{words.bos_token}{text}{words.boi_token}{rows}*{columns}{words.image_wrapper_token}"
        return tuple(words(asked, add_special_tokens=False)["input_ids"])
