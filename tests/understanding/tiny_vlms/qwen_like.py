"""Families that take images as rows of patches, of any size, and merge 2 x 2 of them into a token."""

from __future__ import annotations

from tests.understanding.tiny_vlms.factory import TinyVLM
from tests.understanding.tiny_vlms.qwen import CELL, PICTURES, VIDEOS
from tests.understanding.tiny_vlms.words import PATCH

EDGES = {"shortest_edge": 4 * CELL, "longest_edge": 16 * CELL}
CLIP_EDGES = {"shortest_edge": 4 * CELL, "longest_edge": 64 * CELL}
QWEN2_IMAGES = ("Qwen2VLImageProcessor", PICTURES)
QWEN2_VIDEOS = ("Qwen2VLVideoProcessor", VIDEOS | dict(size=EDGES))
QWEN3_VIDEOS = ("Qwen3VLVideoProcessor", VIDEOS | dict(size=CLIP_EDGES, cap_pixels_per_frame=False))
PADS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
MARKED = dict(
    tokens=PADS,
    image="<|vision_start|><|image_pad|><|vision_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
    ids=IDS,
)
PLACEHOLDERS = {name: token for name, token in IDS.items() if "vision" not in name}
ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
GLM = dict(
    mixes=False,
    tokens=(
        *("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
        *("<|begin_of_video|>", "<|end_of_video|>"),
    ),
    image="<|begin_of_image|><|image|><|end_of_image|>",
    video="<|begin_of_video|><|video|><|end_of_video|>",
    ids={
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    },
)
GLM_TEXT = dict(
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
    }
)
GATED = dict(
    layer_types=["linear_attention", "full_attention"],
    rope_parameters={
        "rope_type": "default",
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
)

ROWS: dict[str, TinyVLM] = {
    "qwen3_vl_moe": TinyVLM(
        "Qwen3VLProcessor",
        QWEN2_IMAGES,
        QWEN3_VIDEOS,
        **MARKED,
        config=dict(text_config=dict(rope_parameters=ROPE), vision_config=dict(deepstack_visual_indexes=[0])),
    ),
    "qwen3_5": TinyVLM("Qwen3VLProcessor", QWEN2_IMAGES, QWEN3_VIDEOS, **MARKED, config=dict(text_config=GATED)),
    "qwen3_5_moe": TinyVLM("Qwen3VLProcessor", QWEN2_IMAGES, QWEN3_VIDEOS, **MARKED, config=dict(text_config=GATED)),
    "qwen4_exp": TinyVLM(
        "Qwen3VLProcessor",
        QWEN2_IMAGES,
        QWEN3_VIDEOS,
        **MARKED,
        config=dict(
            text_config=GATED
            | dict(layer_types=["linear_attention", "indexed_attention"], hc_lowrank=8, ngram_vocab_size_base=64)
            | dict(
                indexer_n_heads=32, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=16, indexer_compress_ratio=2
            )
        ),
        heavy=True,
    ),
    "cosmos3_omni": TinyVLM(
        "Qwen3VLProcessor",
        QWEN2_IMAGES,
        QWEN3_VIDEOS,
        **MARKED,
        config=dict(text_config=dict(rope_parameters=ROPE), vision_config=dict(deepstack_visual_indexes=[0])),
    ),
    "exaone4_5": TinyVLM(
        "Exaone4_5_Processor",
        QWEN2_IMAGES,
        QWEN2_VIDEOS,
        **MARKED | dict(ids=PLACEHOLDERS),
        config=dict(vision_config=dict(window_size=4 * PATCH, fullatt_block_indexes=[1])),
    ),
    "hyperclovax_vision_v2": TinyVLM(
        "HyperCLOVAXVisionV2Processor",
        QWEN2_IMAGES,
        QWEN2_VIDEOS,
        **MARKED | dict(ids=PLACEHOLDERS),
        config=dict(vision_config=dict(window_size=4 * PATCH, fullatt_block_indexes=[1])),
    ),
    "lfm3_vl": TinyVLM(
        "Lfm3VlProcessor",
        QWEN2_IMAGES,
        QWEN3_VIDEOS,
        **MARKED,
        config=dict(text_config=dict(layer_types=["conv", "full_attention"])),
    ),
    "glm4v": TinyVLM(
        "Glm4vProcessor",
        ("Glm4vImageProcessor", PICTURES),
        ("Glm4vVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(text_config=GLM_TEXT),
    ),
    "glm4v_moe": TinyVLM(
        "Glm4vProcessor",
        ("Glm4vImageProcessor", PICTURES),
        ("Glm4vVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(text_config=GLM_TEXT),
    ),
    "glm46v": TinyVLM(
        "Glm46VProcessor",
        ("Glm46VImageProcessor", PICTURES),
        ("Glm46VVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(text_config=GLM_TEXT),
    ),
    "glmga": TinyVLM(
        "Glm46VProcessor",
        ("GlmgaImageProcessor", PICTURES),
        ("GlmgaVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(text_config=GLM_TEXT),
    ),
    "glm_ocr": TinyVLM(
        "Glm46VProcessor",
        ("Glm46VImageProcessor", PICTURES),
        ("Glm46VVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(text_config=GLM_TEXT),
    ),
    "glm5_next": TinyVLM(
        "Glm5NextProcessor",
        ("Glm5NextImageProcessor", dict(patch_size=PATCH, min_image_tokens=1, max_image_tokens=16)),
        ("Glm5NextVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        **GLM,
        config=dict(
            text_config=dict(
                num_key_value_heads=4,
                qk_rope_head_dim=0,
                index_head_dim=8,
                index_n_heads=32,
                index_topk=16,
                linear_num_heads=4,
                layer_types=["linear_attention", "indexed_attention"],
                mlp_layer_types=["dense", "sparse"],
                indexer_types=["full", "full"],
            )
        ),
        heavy=True,
    ),
    "video_llama_3": TinyVLM(
        "VideoLlama3Processor",
        ("VideoLlama3ImageProcessor", dict(patch_size=PATCH, size=EDGES)),
        ("VideoLlama3VideoProcessor", dict(patch_size=PATCH, size=CLIP_EDGES, use_token_compression=False)),
        **MARKED | dict(ids=PLACEHOLDERS),
    ),
    "paddleocr_vl": TinyVLM(
        "PaddleOCRVLProcessor",
        ("PaddleOCRVLImageProcessor", dict(patch_size=PATCH, size=EDGES)),
        tokens=(),
        named={"image_token": "<|image_pad|>", "image_start": "<|vision_start|>", "image_end": "<|vision_end|>"},
        image="<|vision_start|><|image_pad|><|vision_end|>",
        ids={name: token for name, token in IDS.items() if name != "video_token_id"},
        config=dict(text_config=dict(rope_parameters=ROPE)),
    ),
    "hunyuan_vl": TinyVLM(
        "HunYuanVLProcessor",
        ("HunYuanVLImageProcessor", dict(patch_size=PATCH, size=EDGES)),
        tokens=(),
        named={"image_token": "<hy_img>", "image_start_token": "<hy_start>", "image_end_token": "<hy_end>"},
        image="<hy_start><hy_img><hy_end>",
        ids={"image_token_id": "<hy_img>", "im_start_id": "<hy_start>", "im_end_id": "<hy_end>"},
        config=dict(
            text_config=dict(
                head_dim=8,
                rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 1, 1], "rope_theta": 10000.0},
            )
        ),
    ),
    "cohere_compass": TinyVLM(
        "CohereCompassProcessor",
        ("CohereCompassImageProcessor", PICTURES),
        ("CohereCompassVideoProcessor", VIDEOS | dict(size=CLIP_EDGES)),
        tokens=("<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"),
        image="<|VISION_START|><|IMAGE_PAD|><|VISION_END|>",
        video="<|VISION_START|><|VIDEO_PAD|><|VISION_END|>",
        ids={
            "image_token_id": "<|IMAGE_PAD|>",
            "video_token_id": "<|VIDEO_PAD|>",
            "vision_start_token_id": "<|VISION_START|>",
            "vision_end_token_id": "<|VISION_END|>",
        },
        config=dict(
            vision_config=dict(deepstack_visual_indexes=[0]),
            text_config=dict(
                layer_types=["sliding_attention", "full_attention"],
                sliding_window=24,
                rope_parameters={"sliding_attention": ROPE, "full_attention": None},
            ),
        ),
    ),
    "cosmos3_edge": TinyVLM(
        "Cosmos3EdgeProcessor",
        ("Cosmos3EdgeImageProcessor", dict(patch_size=PATCH, size=EDGES)),
        ("Cosmos3EdgeVideoProcessor", dict(patch_size=PATCH, size=CLIP_EDGES)),
        **MARKED,
        config=dict(vision_config=dict(num_patches=16), text_config=dict(rope_parameters=ROPE)),
        requested={"return_mm_token_type_ids": True},
    ),
    "ernie4_5_vl_moe": TinyVLM(
        "Ernie4_5_VLMoeProcessor",
        ("Ernie4_5_VLMoeImageProcessor", dict(patch_size=PATCH, size=EDGES)),
        ("Ernie4_5_VLMoeVideoProcessor", dict(patch_size=PATCH, size=CLIP_EDGES, draw_on_frames=False)),
        tokens=(),
        named={
            "image_token": "<|image|>",
            "image_start_token": "<|is|>",
            "image_end_token": "<|ie|>",
            "video_token": "<|video|>",
            "video_start_token": "<|vs|>",
            "video_end_token": "<|ve|>",
        },
        image="<|is|><|image|><|ie|>",
        video="<|vs|><|video|><|ve|>",
        ids={
            "image_token_id": "<|image|>",
            "image_start_token_id": "<|is|>",
            "image_end_token_id": "<|ie|>",
            "video_token_id": "<|video|>",
            "video_start_token_id": "<|vs|>",
            "video_end_token_id": "<|ve|>",
        },
        config=dict(
            text_config=dict(
                moe_intermediate_size=[16, 16],
                moe_k=2,
                mlp_layer_types=["dense", "sparse"],
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
            )
        ),
    ),
}
