"""Components that many tiny pipelines share, as data: a class of diffusers or transformers and its configuration."""

from __future__ import annotations

from typing import Any

WORDS = "<pad> <unk> </s> a an the of and red green blue yellow circle square triangle big small blurry"
MARKS = "<|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"  # what processors put in the place of pictures
VOCABULARY = {word: number for number, word in enumerate([*WORDS.split(), *MARKS.split()])}
EOS = VOCABULARY["</s>"]
CHAT = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }} {% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text or '' }} {% endif %}{% endfor %}{% endif %}{% endfor %}{{ eos_token }}"
)  # a chat template: words and pictures alone, never none

Component = tuple[str, dict[str, Any]]

WORD_TOKENIZER: Component = ("word_tokenizer", {})
ALLOW_ALL: Component = ("allow_all", {})
FLOW: Component = ("FlowMatchEulerDiscreteScheduler", {})
SHIFTED_FLOW: Component = ("FlowMatchEulerDiscreteScheduler", {"use_dynamic_shifting": True})
CLIP = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 16,
    "projection_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "eos_token_id": EOS,
    "bos_token_id": EOS,
    "pad_token_id": 0,
}
T5: Component = (
    "T5EncoderModel",
    {"vocab_size": len(VOCABULARY), "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
)
LANGUAGE_MODEL = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": EOS,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
QWEN2_5_VL = {
    "text_config": {
        **{key: value for key, value in LANGUAGE_MODEL.items() if key != "head_dim"},
        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        "rope_theta": 1000000.0,
    },
    "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16},
    "image_token_id": VOCABULARY["<|image_pad|>"],
    "video_token_id": VOCABULARY["<|video_pad|>"],
    "vision_start_token_id": VOCABULARY["<|vision_start|>"],
    "vision_end_token_id": VOCABULARY["<|vision_end|>"],
}
QWEN3_VL = {
    **QWEN2_5_VL,
    "text_config": {**LANGUAGE_MODEL, "rope_scaling": {"mrope_section": [2, 1, 1], "rope_type": "default"}},
    "vision_config": {
        **QWEN2_5_VL["vision_config"],
        "num_position_embeddings": 64,
        "patch_size": 8,
        "deepstack_visual_indexes": [0],
    },
}
QWEN2_VL_PROCESSOR: Component = (
    "Qwen2VLProcessor",
    {
        "image_processor": ("Qwen2VLImageProcessor", {"min_pixels": 784, "max_pixels": 3136}),
        "tokenizer": WORD_TOKENIZER,
        "video_processor": ("Qwen2VLVideoProcessor", {}),
        "chat_template": CHAT,
    },
)
QWEN3_VL_PROCESSOR: Component = (
    "Qwen3VLProcessor",
    {
        "image_processor": ("Qwen2VLImageProcessor", {"patch_size": 8, "min_pixels": 256, "max_pixels": 1024}),
        "tokenizer": WORD_TOKENIZER,
        "video_processor": ("Qwen3VLVideoProcessor", {}),
        "chat_template": CHAT,
    },
)
KL_VAE: Component = (
    "AutoencoderKL",
    {
        "block_out_channels": (8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "latent_channels": 4,
        "sample_size": 16,
        "shift_factor": 0.0,
    },
)
EIGHTH_VAE: Component = (
    "AutoencoderKL",
    {
        **KL_VAE[1],
        "block_out_channels": (8,) * 4,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    },
)
CAUSAL_VAE = {"base_dim": 4, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
CLIP_IMAGES: Component = (
    "CLIPImageProcessor",
    {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}},
)
