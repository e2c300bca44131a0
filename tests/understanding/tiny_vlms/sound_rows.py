"""Families that can also hear: their sound is never used, and its encoders are not trained."""

from __future__ import annotations

from tests.understanding.tiny_vlms.factory import TinyVLM
from tests.understanding.tiny_vlms.llava_like import AROUND, IMAGE_ID, IMAGE_NAMED
from tests.understanding.tiny_vlms.patch_rows import MUSE_IDS, MUSE_TOKENS
from tests.understanding.tiny_vlms.qwen_like import CLIP_EDGES, EDGES, PICTURES, QWEN2_IMAGES, VIDEOS
from tests.understanding.tiny_vlms.words import PATCH

AUDIO_NAMED = {"audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
GEMMA_IDS = {
    "image_token_id": "<image>",
    "boi_token_id": "<boi>",
    "eoi_token_id": "<eoi>",
    "audio_token_id": "<audio>",
    "boa_token_id": "<boa>",
}
OMNI = dict(
    parts={"feature_extractor": ("WhisperFeatureExtractor", dict(feature_size=128))},
    tokens=(),
    named={
        "image_token": "<|IMAGE|>",
        "video_token": "<|VIDEO|>",
        "audio_token": "<|AUDIO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    },
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    heavy=True,
)
OMNI_IDS = {
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
}

ROWS: dict[str, TinyVLM] = {
    "gemma3n": TinyVLM(
        "Gemma3nProcessor",
        ("SiglipImageProcessor", dict(size=dict(height=64, width=64))),
        parts={"feature_extractor": ("Gemma3nAudioFeatureExtractor", {})},
        tokens=(),
        named=IMAGE_NAMED | AROUND | AUDIO_NAMED,
        ids=GEMMA_IDS | {"eoa_token_id": "<eoa>"},
        settings=dict(image_seq_length=256),
        config=dict(
            text_config=dict(
                num_hidden_layers=4,
                num_kv_shared_layers=2,
                sliding_window=24,
                layer_types=["sliding_attention", "full_attention"] * 2,
                laurel_rank=8,
                hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=300,
                altup_num_inputs=2,
                intermediate_size=64,
                activation_sparsity_pattern=[0.0] * 4,
                pad_token_id=258,
            ),
            vision_config=dict(
                model_args=dict(channel_multiplier=0.125), hidden_size=2048, vocab_size=16, vocab_offset=400
            ),
            audio_config=dict(hidden_size=16, vocab_size=16, vocab_offset=420, conf_num_hidden_layers=1),
        ),
        heavy=True,
    ),
    "gemma4": TinyVLM(
        "Gemma4Processor",
        ("Gemma4ImageProcessor", dict(patch_size=PATCH, max_soft_tokens=70, pooling_kernel_size=2)),
        ("Gemma4VideoProcessor", dict(patch_size=PATCH, max_soft_tokens=70, pooling_kernel_size=2)),
        parts={"feature_extractor": ("Gemma4AudioFeatureExtractor", {})},
        tokens=("<|video|>",),
        named=IMAGE_NAMED | AROUND | AUDIO_NAMED,
        ids=GEMMA_IDS | {"video_token_id": "<|video|>", "eoa_token_index": "<eoa>"},
        video="<|video|>",
        kinds={"vision_config": "gemma4_vision"},
        config=dict(
            text_config=dict(
                num_hidden_layers=2,
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=24,
                use_bidirectional_attention="vision",
                hidden_size_per_layer_input=8,
                vocab_size_per_layer_input=300,
                global_head_dim=8,
            ),
            vision_config=dict(pooling_kernel_size=2, position_embedding_size=64),
        ),
    ),
    "gemma4_unified": TinyVLM(
        "Gemma4UnifiedProcessor",
        ("Gemma4UnifiedImageProcessor", dict(patch_size=PATCH, max_soft_tokens=70, pooling_kernel_size=2)),
        ("Gemma4UnifiedVideoProcessor", dict(patch_size=PATCH, max_soft_tokens=70, pooling_kernel_size=2)),
        parts={"feature_extractor": ("Gemma4UnifiedAudioFeatureExtractor", {})},
        tokens=("<|video|>",),
        named=IMAGE_NAMED | AROUND | AUDIO_NAMED,
        ids=GEMMA_IDS | {"video_token_id": "<|video|>", "eoa_token_index": "<eoa>"},
        video="<|video|>",
        kinds={"vision_config": "gemma4_unified_vision"},
        config=dict(
            text_config=dict(layer_types=["sliding_attention", "full_attention"], sliding_window=24, global_head_dim=8),
            vision_config=dict(pooling_kernel_size=2, mm_embed_dim=32, mm_posemb_size=64, output_proj_dims=32),
        ),
    ),
    "muse_spark": TinyVLM(
        "MuseSparkProcessor",
        ("MuseGlimmerImageProcessor", dict(patch_size=PATCH, max_image_tokens=16)),
        ("MuseGlimmerVideoProcessor", dict(patch_size=PATCH, max_video_frame_tokens=4)),
        parts={"feature_extractor": ("MuseSparkFeatureExtractor", {})},
        image="<|patch|>",
        video="<|video|>",
        tokens=(*MUSE_TOKENS, "<|audio|>", "<|soft_audio_start|>", "<|soft_audio_end|>"),
        ids=MUSE_IDS | {"audio_token_id": "<|audio|>"},
        config=dict(
            out_hidden_size=128,
            text_config=dict(
                moe_hidden_size=32, layer_types=["sliding_attention", "full_attention"], sliding_window=24
            ),
            vision_config=dict(pos_emb_height=4, pos_emb_width=4),
            audio_config=dict(num_hidden_layers=4, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], out_hidden_size=32),
        ),
    ),
    "nemotron_h_omni": TinyVLM(
        "NemotronH_Omni_Reasoning_V3Processor",
        ("NemotronH_Omni_Reasoning_V3ImageProcessor", dict(patch_size=PATCH, min_num_patches=4, max_num_patches=16)),
        (
            "NemotronH_Omni_Reasoning_V3VideoProcessor",
            dict(patch_size=PATCH, video_target_num_patches=16, norm_mean=[0.5, 0.5, 0.5], norm_std=[0.5, 0.5, 0.5]),
        ),
        parts={"feature_extractor": ("ParakeetFeatureExtractor", {})},
        tokens=("<image>", "<video>", "<so_embedding>", "<so_start>", "<so_end>", "<img>", "</img>"),
        ids={"image_token_id": "<image>", "video_token_id": "<video>"},
        plays=False,
        config=dict(
            vision_hidden_size=32,
            vision_config=dict(video_temporal_patch_size=2),
            text_config=dict(layers_block_type=["linear_attention", "full_attention"]),
        ),
        heavy=True,
    ),
    "inkling_mm_model": TinyVLM(
        "InklingProcessor",
        ("InklingImageProcessor", dict(size=dict(height=16, width=16))),
        parts={"feature_extractor": ("InklingFeatureExtractor", {})},
        tokens=("<image>", "<audio>", "<|content_image|>", "<|content_audio_input|>"),
        ids=IMAGE_ID,
        settings=dict(image_token="<image>", audio_token="<audio>"),
        config=dict(vision_config=dict(n_layers=2, patch_size=16)),
        heavy=True,
    ),
    "qwen2_5_omni_thinker": TinyVLM(
        "Qwen2_5OmniProcessor",
        QWEN2_IMAGES,
        ("Qwen2VLVideoProcessor", VIDEOS | dict(size=EDGES)),
        **OMNI,
        ids=OMNI_IDS
        | {
            "image_token_index": "<|IMAGE|>",
            "video_token_index": "<|VIDEO|>",
            "audio_token_index": "<|AUDIO|>",
        },
        config=dict(
            text_config=dict(rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}),
            vision_config=dict(window_size=4 * PATCH, fullatt_block_indexes=[1]),
        ),
    ),
    "qwen3_omni_moe_thinker": TinyVLM(
        "Qwen3OmniMoeProcessor",
        QWEN2_IMAGES,
        ("Qwen2VLVideoProcessor", VIDEOS | dict(size=EDGES)),
        **OMNI,
        ids=OMNI_IDS
        | {
            "image_token_id": "<|IMAGE|>",
            "video_token_id": "<|VIDEO|>",
            "audio_token_id": "<|AUDIO|>",
        },
        config=dict(
            text_config=dict(rope_parameters={"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}),
            vision_config=dict(deepstack_visual_indexes=[0]),
            audio_config=dict(downsample_hidden_size=16),
        ),
    ),
    "dots3_note": TinyVLM(
        "Dots3NoteProcessor",
        ("Qwen2VLImageProcessor", PICTURES | dict(temporal_patch_size=1)),
        ("Qwen3VLVideoProcessor", VIDEOS | dict(size=CLIP_EDGES, cap_pixels_per_frame=False, temporal_patch_size=1)),
        parts={"feature_extractor": ("Dots3NoteFeatureExtractor", {})},
        tokens=("<|imgpad|>", "<|video_pad|>", "<|audio_comp_pad|>", "<|img|>", "<|endofimg|>"),
        image="<|img|><|imgpad|><|endofimg|>",
        video="<|video_pad|>",
        ids={"image_token_id": "<|imgpad|>", "video_token_id": "<|video_pad|>", "audio_token_id": "<|audio_comp_pad|>"},
        config=dict(
            text_config=dict(
                swa_num_attention_heads=4,
                swa_num_key_value_heads=4,
                swa_q_lora_rank=8,
                swa_kv_lora_rank=8,
                swa_head_dim=16,
                swa_qk_nope_head_dim=8,
                swa_v_head_dim=8,
                sliding_window=24,
                layer_types=["indexed_attention", "sliding_attention"],
                num_key_value_heads=4,
                index_head_dim=8,
                index_n_heads=32,
                index_topk=16,
                shared_experts_intermediate_size=16,
            ),
            vision_config=dict(adapter_in_dim=32, adapter_out_dim=32, pyramid_num_routed=[-1, 4]),
            audio_config=dict(adapter_input_size=32, adapter_out_dim=32),
        ),
        heavy=True,
    ),
}
