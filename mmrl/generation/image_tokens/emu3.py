"""Emu3 (arXiv:2409.18869) in the implementation of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, Emu3ForConditionalGeneration

from mmrl.config.policy import ImageTokenConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import (
    PIXELS_TO_IMAGE,
    ImageTokenModel,
    SnippetRequest,
    TokenPrompt,
    linear_layers_below,
    quote,
    to_images,
    to_pixels,
)

_BODY = "model.text_model."


class Emu3(ImageTokenModel):
    """A model whose codes are tokens of the text vocabulary; each row of an image ends with an end-of-line token.

    The tokens after the last row (end of frame, of image, of text) are constant and are not generated.
    """

    def __init__(self, network: Any, processor: Any, size: tuple[int, int] | None) -> None:
        """`size` is the height and width in pixels; None: the processor's default.

        Raises:
            ConfigError: the size is not a whole number of codes.
        """
        self.network, self._processor = network, processor
        shrink = network.model.vqmodel.spatial_scale_factor
        if size is None:
            rows, columns = processor.calculate_generate_size(processor.ratio, processor.image_area, shrink)
        else:
            rows, columns = size[0] // shrink, size[1] // shrink
            if (rows * shrink, columns * shrink) != tuple(size):
                raise ConfigError(f"policy.size: {list(size)} must be multiples of {shrink}, the side of a code")
        self.grid, self._shrink = (int(rows), int(columns)), shrink
        mapping = network.vocabulary_mapping
        self.codes = len(mapping.img2bpe)
        self._token_of = torch.tensor([mapping.img2bpe[code] for code in range(self.codes)])
        self.forced_tokens: Mapping[int, tuple[int, ...]] = {
            row * self.grid[1]: (int(mapping.eol_token_id),) for row in range(1, self.grid[0])
        }

    @classmethod
    def from_folder(cls, folder: Path, config: ImageTokenConfig, device: torch.device) -> Emu3:
        dtype = getattr(torch, config.dtype)
        network = Emu3ForConditionalGeneration.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return cls(network.to(device), AutoProcessor.from_pretrained(folder), config.size)

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """Return the ids of a prompt with the image size."""
        return TokenPrompt(self._ids(text), self._ids(negative or ""))

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.embed_text(self._token_of.to(codes.device)[codes])

    def body(self, **inputs: Any) -> Any:
        return self.network.model.text_model(**inputs)

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        head = self.network.lm_head
        codes = self._token_of.to(head.weight.device)
        return head.weight[codes], None if head.bias is None else head.bias[codes]

    def is_trainable(self, name: str) -> bool:
        return name.startswith((_BODY, "lm_head."))

    def linear_layers(self) -> list[str]:
        return linear_layers_below(self.network, _BODY)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self.network.model.vqmodel.decode(codes.view(-1, *self.grid)))

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        pixels = to_pixels(images, self.grid[0] * self._shrink, self.grid[1] * self._shrink)
        sizes = torch.tensor([pixels.shape[2:]] * len(images))
        encoded = self.network.model.vqmodel.encode(pixels.to(self.network.device, self.network.dtype), sizes)
        return torch.stack([each.flatten() for each in encoded.image_tokens])

    def save_other_files(self, folder: Path) -> None:
        self._processor.save_pretrained(folder)

    def snippet(self, request: SnippetRequest) -> str:
        rows, columns = self.grid
        read = 'processor(text=[{} + size], return_tensors="pt").to(model.device)'
        return "\n".join(
            [
                "import torch",
                "from PIL import Image",
                "from transformers import AutoProcessor, Emu3ForConditionalGeneration",
                "",
                f"model = Emu3ForConditionalGeneration.from_pretrained({request.load_arguments})",
                f"processor = AutoProcessor.from_pretrained({quote(request.folder)})",
                "tokenizer, codes_of = processor.tokenizer, model.vocabulary_mapping",
                f"rows, columns = {rows}, {columns}",
                'size = f"{tokenizer.boi_token}{rows}*{columns}{tokenizer.image_wrapper_token}"',
                f"inputs = {read.format(quote(request.prompt))}",
                *request.empty_prompt_lines(read),
                'prompt_length = inputs["input_ids"].shape[1]',
                "",
                "",
                "def allowed(_, ids):",
                "    row_ends = (len(ids) - prompt_length + 1) % (columns + 1) == 0",
                "    return [codes_of.eol_token_id] if row_ends else codes_of.image_tokens",
                "",
                "",
                "tokens = model.generate(",
                "    **inputs,",
                "    max_new_tokens=rows * (columns + 1),",
                "    prefix_allowed_tokens_fn=allowed,",
                *request.guidance_lines('empty["input_ids"]', 'empty["attention_mask"]'),
                f"    {request.generate_arguments},",
                ")",
                "codes = codes_of.convert_bpe2img(tokens[:, prompt_length:].view(1, rows, columns + 1))",
                "pixels = model.model.vqmodel.decode(codes)[0].permute(1, 2, 0)",
                PIXELS_TO_IMAGE,
            ]
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        tokenizer = self._processor.tokenizer
        rows, columns = self.grid
        prompt = f"{tokenizer.bos_token}{text}{tokenizer.boi_token}{rows}*{columns}{tokenizer.image_wrapper_token}"
        return tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"])
