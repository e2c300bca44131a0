"""The differences between families of vision-language models that transformers does not hide itself.

A family that is not listed has positions as its code counts them and coordinates in [0, 1], and may have attention
between image tokens. docs/vlms.md lists what the tests saw of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mmrl.rewards.parsing.boxes import Space


@dataclass(frozen=True)
class VLMFamily:
    """The position, coordinate and attention conventions of a model family."""

    name: str
    space: Space = "norm_1"
    """The coordinate space of the boxes in its answers: that of its training, where its makers published one."""
    trained_space: bool = False
    """True if its makers published that they trained it to answer in `space`."""
    first_position: int = 0
    """The position of a prompt's first token."""
    axes: int = 1
    """Number of axes of a rotary position: 3 where image tokens have a time, a height and a width, 4 with an index."""
    answer_type: int = 0
    """The value of `token_type_ids` for answer tokens, in models that take them."""
    mixes_media: bool = True
    """True if one prompt may contain both images and videos, and one batch prompts with either."""
    plays: bool = True
    """False if the model fails on the videos that its processor makes."""
    batches: bool = True
    """True if a prompt may be padded on the left beside others; otherwise each is computed alone."""
    in_one_row: bool = False
    """True if the patches of all images of a batch are one row of pixels [1, C, P, N * P]."""
    causal: bool = False
    """True if every token, image tokens included, attends to earlier tokens only; prompts can then be shared."""
    unshared: str = ""
    """The reason why answers cannot share one copy of a causal model's prompt; empty: its layers decide."""

    def answer_kind(self, name: str) -> int:
        """Return the value for answer tokens of an input with one value for each token."""
        return self.answer_type if name == "token_type_ids" else 0


_FAMILIES = (
    VLMFamily("qwen2_vl", space="norm_1000", trained_space=True, causal=True),
    VLMFamily("qwen2_5_vl", space="pixel", trained_space=True, causal=True),
    VLMFamily("qwen3_vl", space="norm_1000", trained_space=True, causal=True),
    VLMFamily("qwen3_vl_moe", space="norm_1000", trained_space=True, causal=True),
    VLMFamily("internvl", space="norm_1000", trained_space=True, causal=True),
    # Its processor overwrites the images with the frames of a video.
    VLMFamily("smolvlm", mixes_media=False, causal=True),
    # They mark frames by the token of images.
    *(
        VLMFamily(name, space="norm_1000", trained_space=True, mixes_media=False, causal=True)
        for name in ("glm4v", "glm4v_moe", "glm46v")
    ),
    *(VLMFamily(name, mixes_media=False, causal=True) for name in ("glm_ocr", "glmga")),
    # It counts the images of a whole batch.
    VLMFamily("hunyuan_vl", batches=False, causal=True),
    VLMFamily("mllama", batches=False, unshared="it looks at images by cross-attention", causal=True),
    # It expects features of all frames, and its tower averages them.
    VLMFamily("kimi_k25", plays=False, causal=True),
    *(VLMFamily(name, in_one_row=True, causal=True) for name in ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")),
    # Its processor counts the crops of one prompt.
    VLMFamily("molmo2", mixes_media=False, batches=False),
    # Its processor takes one video, with other metadata.
    VLMFamily("nemotron_h_omni", plays=False, causal=True),
    # It attends to blocks of keys, and padding moves their borders.
    VLMFamily("minimax_m3_vl", batches=False, causal=True),
    VLMFamily("gemma3", space="norm_1000", trained_space=True),
    *(VLMFamily(name, trained_space=True, causal=True) for name in ("llava", "llava_next")),
    VLMFamily("paligemma", first_position=1, answer_type=1),
)
_CAUSAL = frozenset(
    {
        *("llava_onevision", "llava_next_video", "vipllava", "video_llava", "video_llama_3"),
        *("idefics2", "idefics3", "aria", "aya_vision", "cohere2_vision", "cohere_compass", "mistral3"),
        *("mistral_large4", "glm5_next", "lighton_ocr", "perception_lm", "fast_vlm", "ovis2", "janus", "deepseek_vl"),
        *("deepseek_vl_hybrid", "lfm2_vl", "lfm3_vl", "granite4_vision", "granite_docling", "qianfan_ocr", "llama4"),
        *("qwen3_5", "qwen3_5_moe", "qwen4_exp", "cosmos3_omni", "cosmos3_edge", "exaone4_5"),
        *("hyperclovax_vision_v2", "paddleocr_vl", "ernie4_5_vl_moe"),
        *("inkling_mm_model", "gemma3n", "gemma4", "gemma4_unified", "deepseek_ocr2", "dots3_note"),
        *("inkling2", "muse_glimmer", "muse_spark", "step3p7", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"),
    }
)
"""Families that differ from others in `causal` alone, and in what their code says of positions."""


def family_of(model: Any) -> VLMFamily:
    """Return the family of a model, with the number of axes that its code counts positions on."""
    kind, text = model.config.model_type, model.config.get_text_config()
    axes = 1
    if hasattr(getattr(model, "model", None), "get_rope_index"):
        axes = len((getattr(text, "rope_parameters", None) or {}).get("mrope_section") or (0, 0, 0))
    unknown = VLMFamily(kind, causal=kind in _CAUSAL)
    family = replace(next((each for each in _FAMILIES if each.name == kind), unknown), axes=axes)
    if getattr(text, "use_bidirectional_attention", None):
        return replace(family, causal=False)
    if family.causal and getattr(text, "kv_lora_rank", None):
        return replace(family, unshared="it stores compressed keys and values")
    return family
