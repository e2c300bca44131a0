"""Components that many tiny pipelines share, as data: a class of diffusers or transformers and its configuration."""

from __future__ import annotations

from typing import Any

WORDS = "<pad> <unk> </s> a an the of and red green blue yellow circle square triangle big small blurry"
VOCABULARY = {word: number for number, word in enumerate(WORDS.split())}
EOS = VOCABULARY["</s>"]
CHAT = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }} {% else %}"
    "{% for part in message.content %}{{ part.text or '' }} {% endfor %}{% endif %}{% endfor %}"
)  # a chat template: the words alone

Component = tuple[str, dict[str, Any]]

WORD_TOKENIZER: Component = ("word_tokenizer", {})
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
    "pad_token_id": 0,
}
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
CAUSAL_VAE = {"base_dim": 4, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
