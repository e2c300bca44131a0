"""Janus and Janus-Pro (arXiv:2410.13848, arXiv:2501.17811) in the implementation of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, JanusForConditionalGeneration

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

_BODY = "model.language_model."
_GENERATOR = (_BODY, "model.generation_embeddings.", "model.generation_aligner.", "model.generation_head.")
"""The parameters that generate codes. The vision tower only encodes input images; the autoencoder is a codec."""


class Janus(ImageTokenModel):
    """A model whose codes have embeddings, an aligner and a head apart from those of text tokens.

    The empty prompt is as long as the other: all tokens but the special ones are padding, which is attended to.
    """

    unified = True

    def __init__(self, network: Any, processor: Any) -> None:
        self.network, self._processor = network, processor
        side = network.config.vq_config.num_patches
        self.grid = (side, side)
        self.codes = int(network.config.vq_config.num_embeddings)
        settings, tokenizer = network.generation_config, processor.tokenizer
        special = getattr(settings, "generation_kwargs", None) or {}
        begin = tokenizer.bos_token_id if settings.bos_token_id is None else settings.bos_token_id
        image = special.get("boi_token_id", tokenizer.convert_tokens_to_ids(tokenizer.boi_token))
        self._unpadded = {begin, image}
        self._padding = tokenizer.pad_token_id if settings.pad_token_id is None else settings.pad_token_id

    @classmethod
    def from_folder(cls, folder: Path, config: ImageTokenConfig, device: torch.device) -> Janus:
        if config.size is not None:
            raise ConfigError("policy.size: Janus has a single image size: leave it out")
        dtype = getattr(torch, config.dtype)
        network = JanusForConditionalGeneration.from_pretrained(folder, dtype=dtype, use_safetensors=True)
        return cls(network.to(device), AutoProcessor.from_pretrained(folder))

    def prompt(self, text: str, negative: str | None) -> TokenPrompt:
        """Return the ids of a prompt, through the chat template if there is one."""
        if negative is not None:
            raise ConfigError("sampling.negative_prompt: Janus guides away from padding only: leave it out")
        if self._processor.chat_template:
            turn = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            text = self._processor.apply_chat_template(turn, add_generation_prompt=True)
        ids = self._processor(text=[text], generation_mode="image")["input_ids"]
        cond = tuple(int(token) for token in torch.as_tensor(ids)[0])
        return TokenPrompt(cond, tuple(token if token in self._unpadded else self._padding for token in cond))

    def embed_codes(self, codes: Tensor) -> Tensor:
        embeddings: Tensor = self.network.prepare_embeddings_for_image_generation(codes)
        return embeddings

    def body(self, **inputs: Any) -> Any:
        return self.network.model.language_model(**inputs)

    def code_states(self, states: Tensor) -> Tensor:
        head = self.network.model.generation_head
        hidden: Tensor = head.activation_fn(head.proj_out(states))
        return hidden

    def code_head(self) -> tuple[Tensor, Tensor | None]:
        last = self.network.model.generation_head.vision_head
        return last.weight, last.bias

    def is_trainable(self, name: str) -> bool:
        return name.startswith(_GENERATOR)

    def linear_layers(self) -> list[str]:
        return linear_layers_below(self.network, _BODY)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> list[Image.Image]:
        return to_images(self.network.model.vqmodel.decode(codes))

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        vae = self.network.model.vqmodel
        shrink = 2 ** (len(vae.config.channel_multiplier) - 1)
        pixels = to_pixels(images, self.grid[0] * shrink, self.grid[1] * shrink)
        latents = vae.quant_conv(vae.encoder(pixels.to(self.network.device, self.network.dtype)))
        codes: Tensor = vae.quantize(latents)[2].view(len(images), -1)
        return codes

    def save_other_files(self, folder: Path) -> None:
        self._processor.save_pretrained(folder)

    def snippet(self, request: SnippetRequest) -> str:
        prompt = [f"text = {quote(request.prompt)}"]
        if self._processor.chat_template:
            prompt = [
                f'turn = [{{"role": "user", "content": [{{"type": "text", "text": {quote(request.prompt)}}}]}}]',
                "text = processor.apply_chat_template(turn, add_generation_prompt=True)",
            ]
        guidance = f"guidance_scale={request.sampling.guidance_scale}"
        return "\n".join(
            [
                "import torch",
                "from PIL import Image",
                "from transformers import AutoProcessor, JanusForConditionalGeneration",
                "",
                f"model = JanusForConditionalGeneration.from_pretrained({request.load_arguments})",
                f"processor = AutoProcessor.from_pretrained({quote(request.folder)})",
                *prompt,
                'inputs = processor(text=[text], generation_mode="image", return_tensors="pt").to(model.device)',
                "codes = model.generate(",
                f'    **inputs, generation_mode="image", use_cache=True, {guidance}, {request.generate_arguments}',
                ")",
                "pixels = model.decode_image_tokens(codes)[0]",
                PIXELS_TO_IMAGE,
            ]
        )
