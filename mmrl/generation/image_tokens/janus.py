"""Janus and Janus-Pro (arXiv:2410.13848, arXiv:2501.17811) as transformers has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.image_token_model import TokenPrompt, to_images, to_pixels

BODY = "model.language_model."
DRAWING = (BODY, "model.generation_embeddings.", "model.generation_aligner.", "model.generation_head.")
"""Parameters that write codes. The vision tower only looks, and the autoencoder is a codec."""


class Janus:
    """Codes have embeddings, an aligner and a head of their own, beside those of words.

    The empty prompt is as long as the other: all its tokens but the marks are padding, which is looked at.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        self.network, self._processor = model, processor
        side = model.config.vq_config.num_patches
        self.grid = (side, side)
        self.codes = int(model.config.vq_config.num_embeddings)
        self.forced_tokens: Mapping[int, tuple[int, ...]] = {}
        settings, words = model.generation_config, processor.tokenizer
        marks = getattr(settings, "generation_kwargs", None) or {}
        begin = words.bos_token_id if settings.bos_token_id is None else settings.bos_token_id
        self._kept = {begin, marks.get("boi_token_id", words.convert_tokens_to_ids(words.boi_token))}
        self._padding = words.pad_token_id if settings.pad_token_id is None else settings.pad_token_id

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """Through the chat template, if there is one."""
        if negative is not None:
            raise ConfigError("sampling.negative_prompt: Janus is led away from padding alone: leave it out")
        if self._processor.chat_template:
            turn = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            text = self._processor.apply_chat_template(turn, add_generation_prompt=True)
        ids = self._processor(text=[text], generation_mode="image")["input_ids"]
        asked = tuple(int(number) for number in torch.as_tensor(ids)[0])
        return TokenPrompt(asked, tuple(number if number in self._kept else self._padding for number in asked))

    def embed_text(self, ids: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(ids)

    def embed_codes(self, codes: Tensor) -> Tensor:
        return self.network.prepare_embeddings_for_image_generation(codes)

    def body(self, **inputs: Any) -> Any:
        return self.network.model.language_model(**inputs)

    def code_states(self, states: Tensor) -> Tensor:
        head = self.network.model.generation_head
        return head.activation_fn(head.proj_out(states))

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        last = self.network.model.generation_head.vision_head
        return last.weight, last.bias

    def is_trainable(self, name: str) -> bool:
        return name.startswith(DRAWING)

    def linear_layers(self) -> list[str]:
        linear = [path for path, module in self.network.named_modules() if isinstance(module, nn.Linear)]
        return [path for path in linear if path.startswith(BODY)]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self.network.model.vqmodel.decode(codes))

    @torch.no_grad()
    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        vae = self.network.model.vqmodel
        shrink = 2 ** (len(vae.config.channel_multiplier) - 1)
        pixels = to_pixels(pictures, self.grid[0] * shrink, self.grid[1] * shrink)
        latents = vae.quant_conv(vae.encoder(pixels.to(self.network.device, self.network.dtype)))
        return vae.quantize(latents)[2].view(len(pictures), -1)

    def weights(self, folder: Path) -> Path:
        return folder

    def save_other_files(self, folder: Path) -> None:
        self._processor.save_pretrained(folder)
