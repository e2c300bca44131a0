"""ImageReward: BLIP's image encoder, its text encoder with cross-attention to the image, and a linear head.

The published file has the tensor names of BLIP's own code; they are mapped to those of transformers' BLIP.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_rewards import linear_head
from mmrl.rewards.models.model_files import find_file, load_tensors, load_tokenizer, loading_errors, torch_dtype
from mmrl.rewards.models.model_reward import PixelReward
from mmrl.rewards.models.preprocess import PromptTruncator, TensorPreprocess

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor, nn

MEAN, STD = 0.16717362830052426, 1.0333394966054072  # statistics of the head's output over the training set
TOKENS = 35

VISION, TEXT, HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp."
HEAD_WIDTH = 64
"""Width of an attention head in both of BLIP's image encoders (768 / 12 and 1024 / 16); the file does not have it."""

_VISION_NAMES = (  # published name -> transformers' name
    (re.compile(r"^cls_token$"), "embeddings.class_embedding"),
    (re.compile(r"^pos_embed$"), "embeddings.position_embedding"),
    (re.compile(r"^patch_embed\.proj\."), "embeddings.patch_embedding."),
    (re.compile(r"^norm\."), "post_layernorm."),
    (re.compile(r"^blocks\.([0-9]+)\.norm([12])\."), r"encoder.layers.\1.layer_norm\2."),
    (re.compile(r"^blocks\.([0-9]+)\.attn\.qkv\."), r"encoder.layers.\1.self_attn.qkv."),
    (re.compile(r"^blocks\.([0-9]+)\.attn\.proj\."), r"encoder.layers.\1.self_attn.projection."),
    (re.compile(r"^blocks\.([0-9]+)\.mlp\.fc([12])\."), r"encoder.layers.\1.mlp.fc\2."),
)
_TEXT_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "hidden_act",
    "layer_norm_eps",
    "pad_token_id",
)


class ImageReward(PixelReward):
    """Human preference for an image given its prompt, by a BLIP with cross-attention: (r − 0.1671673) / 1.0333395.

    Unbounded, about normal over the training set: −2.3 to 2 in practice. Reads 35 tokens of the prompt.
    """

    name, range = "image_reward", (-math.inf, math.inf)
    source = "ImageReward, arXiv:2304.05977; THUDM/ImageReward:ImageReward/ImageReward.py"

    def __init__(
        self,
        model: str = "THUDM/ImageReward",
        tokenizer: str = "google-bert/bert-base-uncased",
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`model`: a folder or hub repository with ImageReward.pt and med_config.json."""
        from torch import nn
        from torchvision import transforms

        found = find_file(model, ("ImageReward.safetensors", "ImageReward.pt"), revision)
        settings = find_file(model, "med_config.json", revision)
        with loading_errors(settings.label):
            med = json.loads(settings.path.read_text(encoding="utf-8"))
        tensors = load_tensors(found)
        with loading_errors(found.label):
            self._parts = parts = build_blip(tensors, med, found.label, torch_dtype(dtype))
        super().__init__(nn.ModuleList([parts.vision, parts.text, parts.head]), [found], device)
        self._tokenizer = load_tokenizer(tokenizer, None)
        # The two tokens that BLIP's vocabulary of 30,524 adds to BERT's 30,522.
        self._tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        self._tokenizer.add_tokens(["[ENC]"], special_tokens=True)
        self._truncator = PromptTruncator(self.name, TOKENS)
        size = parts.image_size
        self.tensor_preprocess = TensorPreprocess(size, size, "crop", edge=size)
        self._preprocess = transforms.Compose(
            [
                transforms.Resize(size, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                transforms.Normalize(self.tensor_preprocess.mean, self.tensor_preprocess.std),
            ]
        )

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        """Return [B, 3, 224, 224] float32: the short side resized to 224, then the centre cropped."""
        import torch

        return torch.stack([self._preprocess(image) for image in images])

    def score_pixels(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        dtype = next(self._parts.vision.parameters()).dtype
        patches = self._parts.vision(pixel_values=pixels.to(dtype)).last_hidden_state  # [B, N, D]
        tokens = self._tokenize([item.prompt for item in items])
        states = self._parts.text(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            encoder_hidden_states=patches,
            encoder_attention_mask=patches.new_ones(patches.shape[:2]).long(),
        ).last_hidden_state
        rewards: Tensor = self._parts.head(states[:, 0].float())[:, 0]
        return (rewards - MEAN) / STD

    def _tokenize(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        inputs = self._truncator.tokenize(self._tokenizer, prompts)
        return {name: inputs[name].to(self.device) for name in ("input_ids", "attention_mask")}


@dataclass(frozen=True)
class BlipParts:
    """The parts of ImageReward's network."""

    vision: nn.Module
    text: nn.Module
    head: nn.Module  # always in float32, as published
    image_size: int


def vision_name(published: str) -> str:
    """Return transformers' name of a tensor of the image encoder, without prefixes.

    >>> vision_name("blocks.3.attn.qkv.weight")
    'encoder.layers.3.self_attn.qkv.weight'
    """
    for pattern, renamed in _VISION_NAMES:
        if pattern.match(published):
            return pattern.sub(renamed, published)
    raise RewardError(f"BLIP's image encoder has no tensor {published!r}")


def vision_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the image encoder's tensors, by transformers' names."""
    return {vision_name(name.removeprefix(VISION)): t for name, t in tensors.items() if name.startswith(VISION)}


def text_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the text encoder's tensors, whose names transformers kept, without position ids, which are no weights."""
    kept = {name.removeprefix(TEXT): tensor for name, tensor in tensors.items() if name.startswith(TEXT)}
    kept.pop("embeddings.position_ids", None)
    return kept


def build_blip(
    tensors: Mapping[str, Tensor],  # as in ImageReward.pt; other tensors than those of the three parts are ignored
    text_settings: Mapping[str, Any],  # as in med_config.json
    label: str,  # the file of the tensors, for messages
    dtype: torch.dtype,
) -> BlipParts:
    """Return the network with its weights. Sizes of the image encoder are inferred from the tensors.

    Raises:
        RewardError: a tensor is missing, has another shape, or is unknown.
    """
    from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

    image_weights, text_weights = vision_tensors(tensors), text_tensors(tensors)
    if not image_weights or not text_weights:
        raise RewardError(f"{label} has no tensors called {VISION}* and {TEXT}*: it is not an ImageReward")
    with loading_errors(label):
        patches = image_weights["embeddings.patch_embedding.weight"]  # [width, 3, patch, patch]
        positions = image_weights["embeddings.position_embedding"].shape[1] - 1  # minus that of the class token
        width, patch = patches.shape[0], patches.shape[-1]
        size = math.isqrt(positions) * patch
        vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=width,
                intermediate_size=image_weights["encoder.layers.0.mlp.fc1.weight"].shape[0],
                num_hidden_layers=len(
                    {name.split(".")[2] for name in image_weights if name.startswith("encoder.layers.")}
                ),
                num_attention_heads=width // HEAD_WIDTH,
                image_size=size,
                patch_size=patch,
                layer_norm_eps=1e-6,  # timm's; transformers' BLIP has 1e-5
            )
        )
        text = BlipTextModel(
            BlipTextConfig(
                **{name: text_settings[name] for name in _TEXT_SETTINGS},
                encoder_hidden_size=width,
                is_decoder=True,  # adds the cross-attention to the image
            ),
            add_pooling_layer=False,
        )
        vision.load_state_dict(image_weights)
        text.load_state_dict(text_weights)
    head = linear_head(
        {name.removeprefix(HEAD): tensor for name, tensor in tensors.items() if name.startswith(HEAD)}, label
    )
    return BlipParts(vision.to(dtype), text.to(dtype), head, size)
