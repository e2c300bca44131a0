"""The tiny CLIP of ShapeWorld: real CLIP classes made small, for scoring pictures against captions.

It ships twice with the same weights: for transformers (`CLIPModel.from_pretrained(CLIP)` and
`CLIPProcessor.from_pretrained(CLIP)`) and for open_clip
(`open_clip.create_model_and_transforms(f"local-dir:{OPEN_CLIP}")`). `tools.shapeworld_pretrain.clip` trains it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

from mmrl_shapeworld.models import CAPTION_TOKENS, TEXT_WIDTH
from mmrl_shapeworld.shipped_models import CLIP, OPEN_CLIP

if TYPE_CHECKING:
    from mmrl.workflows.compare.comparison import EncoderEmbedder

PIXELS, PATCH = 32, 4
WIDTH, LAYERS, HEAD_WIDTH = 96, 4, 32
EMBEDDING = 64
MEAN = STD = (0.5, 0.5, 0.5)
"""Pictures enter in [-1, 1]."""


def build(tokenizer: CLIPTokenizer) -> CLIPModel:
    """0.6 M parameters, untrained: 64 patches of 4×4 pixels, and captions of up to twelve tokens."""
    return CLIPModel(
        CLIPConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": TEXT_WIDTH,
                "intermediate_size": 4 * TEXT_WIDTH,
                "num_hidden_layers": 2,
                "num_attention_heads": TEXT_WIDTH // HEAD_WIDTH,
                "max_position_embeddings": CAPTION_TOKENS,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
            },
            vision_config={
                "hidden_size": WIDTH,
                "intermediate_size": 4 * WIDTH,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": WIDTH // HEAD_WIDTH,
                "image_size": PIXELS,
                "patch_size": PATCH,
            },
            projection_dim=EMBEDDING,
        )
    )


def save(model: CLIPModel, tokenizer: CLIPTokenizer, folder: Path, open_clip_folder: Path) -> None:
    """Write both forms: half precision on disk, which the loaders of both read as float32."""
    half = {name: value.half().contiguous() for name, value in model.state_dict().items() if "position_ids" not in name}
    pictures = CLIPImageProcessor(
        size={"shortest_edge": PIXELS},
        crop_size={"height": PIXELS, "width": PIXELS},
        image_mean=list(MEAN),
        image_std=list(STD),
    )
    model.save_pretrained(folder, safe_serialization=True)  # for its configuration, which says float32
    save_file(half, folder / "model.safetensors", metadata={"format": "pt"})
    CLIPProcessor(image_processor=pictures, tokenizer=tokenizer).save_pretrained(folder)
    open_clip_folder.mkdir(parents=True, exist_ok=True)
    save_file(open_clip_state(half), open_clip_folder / "open_clip_model.safetensors")
    tokenizer.save_pretrained(open_clip_folder)
    written = json.dumps(open_clip_config(model.config), indent=2) + "\n"
    (open_clip_folder / "open_clip_config.json").write_text(written, encoding="utf-8")


def open_clip_config(config: CLIPConfig) -> dict[str, Any]:
    """Return the entry of `open_clip_config.json` for a transformers CLIP: no default of open_clip is relied on."""
    text, vision = config.text_config, config.vision_config
    return {
        "model_cfg": {
            "embed_dim": config.projection_dim,
            "quick_gelu": text.hidden_act == vision.hidden_act == "quick_gelu",
            "vision_cfg": {
                "image_size": vision.image_size,
                "patch_size": vision.patch_size,
                "layers": vision.num_hidden_layers,
                "width": vision.hidden_size,
                "head_width": vision.hidden_size // vision.num_attention_heads,
                "mlp_ratio": vision.intermediate_size / vision.hidden_size,
            },
            "text_cfg": {
                "context_length": text.max_position_embeddings,
                "vocab_size": text.vocab_size,
                "width": text.hidden_size,
                "heads": text.num_attention_heads,
                "layers": text.num_hidden_layers,
                "mlp_ratio": text.intermediate_size / text.hidden_size,
                # "argmax" would take the highest id for the end of the text; here it is id 1.
                "pool_type": "eos",
                "eos_id": text.eos_token_id,
                "pad_id": text.pad_token_id,
                # Any name: with local-dir, open_clip reads the tokenizer from the folder itself.
                "hf_tokenizer_name": "clip-shapes",
            },
        },
        "preprocess_cfg": {
            "size": vision.image_size,
            "mean": list(MEAN),
            "std": list(STD),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }


def open_clip_state(
    state: dict[str, Tensor],  # of a transformers CLIPModel
) -> dict[str, Tensor]:
    """The same weights under open_clip's names: three projections become one, and the last ones are transposed."""
    renamed = {"logit_scale": state["logit_scale"]}
    for ours, theirs in _OUTER.items():
        renamed[theirs] = state[ours]
    renamed["visual.proj"] = state["visual_projection.weight"].T.contiguous()
    renamed["text_projection"] = state["text_projection.weight"].T.contiguous()
    for ours, theirs in (("vision_model", "visual.transformer"), ("text_model", "transformer")):
        layers = {int(name.split(".")[3]) for name in state if name.startswith(f"{ours}.encoder.layers.")}
        for layer in layers:
            source, target = f"{ours}.encoder.layers.{layer}", f"{theirs}.resblocks.{layer}"
            for part in ("weight", "bias"):
                joined = [state[f"{source}.self_attn.{name}_proj.{part}"] for name in "qkv"]
                renamed[f"{target}.attn.in_proj_{part}"] = torch.cat(joined)
                for a, b in _INNER.items():
                    renamed[f"{target}.{b}.{part}"] = state[f"{source}.{a}.{part}"]
    return renamed


_OUTER = {
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
}
_INNER = {
    "self_attn.out_proj": "attn.out_proj",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def load() -> tuple[CLIPModel, CLIPProcessor]:
    """The shipped model, in evaluation mode, and what prepares pictures and texts for it."""
    return CLIPModel.from_pretrained(CLIP).eval().requires_grad_(False), CLIPProcessor.from_pretrained(CLIP)


def image_embedder() -> EncoderEmbedder:
    """Load the shipped model to measure distances between images: the entry point of `mmrl.image_embedders`."""
    from mmrl.rewards.models.clip_encoder import load_encoder
    from mmrl.workflows.compare.comparison import EncoderEmbedder

    return EncoderEmbedder("ShapeWorld's CLIP", load_encoder("evaluate", str(CLIP)))


def weights_equal(folder: Path = CLIP, open_clip_folder: Path = OPEN_CLIP) -> bool:
    """Return whether both formats contain the same weights, bit by bit."""
    ours = open_clip_state(load_file(folder / "model.safetensors"))
    theirs = load_file(open_clip_folder / "open_clip_model.safetensors")
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
