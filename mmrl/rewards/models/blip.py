"""ImageReward's network: BLIP's picture encoder, its text encoder that looks at the picture, and a linear head.

The published file names its tensors as BLIP's own code does; transformers has the same network under other names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.models.aesthetic import linear_head
from mmrl.rewards.models.model_files import explained

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

VISION, TEXT, HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp."
HEAD_WIDTH = 64
"""Of an attention head in both of BLIP's picture encoders (768 / 12 and 1024 / 16); the file does not say it."""

_VISION_NAMES = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj": "embeddings.patch_embedding",
    "norm": "post_layernorm",
}
_BLOCK_NAMES = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
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


@dataclass(frozen=True)
class BlipParts:
    """ImageReward's network, part by part."""

    vision: nn.Module
    text: nn.Module
    head: nn.Module  # in float32 whatever the others are in, as published
    image_size: int


def vision_name(published: str) -> str:
    """transformers' name of a tensor of the picture encoder, without prefixes.

    >>> vision_name("blocks.3.attn.qkv.weight")
    'encoder.layers.3.self_attn.qkv.weight'
    """
    if published in _VISION_NAMES:
        return _VISION_NAMES[published]
    name, _, parameter = published.rpartition(".")
    if name in _VISION_NAMES:
        return f"{_VISION_NAMES[name]}.{parameter}"
    kind, _, rest = name.partition(".")
    number, _, inside = rest.partition(".")
    if kind == "blocks" and number.isdigit() and inside in _BLOCK_NAMES:
        return f"encoder.layers.{number}.{_BLOCK_NAMES[inside]}.{parameter}"
    raise RewardError(f"BLIP's picture encoder has no tensor {published!r}")


def vision_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The picture encoder's, under transformers' names."""
    return {vision_name(name.removeprefix(VISION)): t for name, t in tensors.items() if name.startswith(VISION)}


def text_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The text encoder's, whose names transformers kept. Positions are no weights, and are left out."""
    kept = {name.removeprefix(TEXT): tensor for name, tensor in tensors.items() if name.startswith(TEXT)}
    kept.pop("embeddings.position_ids", None)
    return kept


def build_blip(
    tensors: Mapping[str, Tensor],  # as in ImageReward.pt; what belongs to none of the three parts is left aside
    text_settings: Mapping[str, Any],  # as in med_config.json
    what: str,  # the file of the tensors, for messages
    dtype: torch.dtype,
) -> BlipParts:
    """The network with its weights. Sizes of the picture encoder are read off the tensors.

    Raises:
        RewardError: a tensor is missing, of another shape, or not known.
    """
    from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

    seen, read = vision_tensors(tensors), text_tensors(tensors)
    if not seen or not read:
        raise RewardError(f"{what} has no tensors called {VISION}* and {TEXT}*: it is no ImageReward")
    with explained(what):
        patches = seen["embeddings.patch_embedding.weight"]  # [width, 3, patch, patch]
        positions = seen["embeddings.position_embedding"].shape[1] - 1  # the class token has one too
        width, patch = patches.shape[0], patches.shape[-1]
        size = math.isqrt(positions) * patch
        vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=width,
                intermediate_size=seen["encoder.layers.0.mlp.fc1.weight"].shape[0],
                num_hidden_layers=len({name.split(".")[2] for name in seen if name.startswith("encoder.layers.")}),
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
                is_decoder=True,  # what gives it the layers that look at the picture
            ),
            add_pooling_layer=False,
        )
        vision.load_state_dict(seen)
        text.load_state_dict(read)
    head = linear_head(
        {name.removeprefix(HEAD): tensor for name, tensor in tensors.items() if name.startswith(HEAD)}, what
    )
    return BlipParts(vision.to(dtype), text.to(dtype), head, size)
