"""Families with encoders of images that differ: rows of patches, tiles with overlaps, queries, sound beside them."""

from __future__ import annotations

from tests.understanding.tiny_vlms.factory import TinyVLM
from tests.understanding.tiny_vlms.llava_like import IMAGE_ID, IMAGE_NAMED, SQUARE
from tests.understanding.tiny_vlms.qwen_like import PICTURES
from tests.understanding.tiny_vlms.words import PATCH, SIDE

MUSE_TOKENS = (
    "<|patch|>",
    "<|image_start|>",
    "<|image_end|>",
    "<|video|>",
    "<|vid_frame_separator|>",
    "<|vid_start|>",
    "<|vid_end|>",
)
MUSE_IDS = {"image_token_id": "<|patch|>", "video_token_id": "<|video|>"}

MINICPM = dict(
    tokens=(),
    named=IMAGE_NAMED
    | {
        "video_token": "<video>",
        "image_start_token": "<is>",
        "image_end_token": "<ie>",
        "slice_start_token": "<ss>",
        "slice_end_token": "<se>",
        "image_id_start_token": "<ids>",
        "image_id_end_token": "<ide>",
    },
    ids={"image_token_id": "<image>", "video_token_id": "<video>"},
)
GATED = dict(layer_types=["linear_attention", "full_attention"])


ROWS: dict[str, TinyVLM] = {
    "minimax_m3_vl": TinyVLM(
        "MiniMaxM3VLProcessor",
        ("MiniMaxM3VLImageProcessor", PICTURES),
        ("MiniMaxM3VLVideoProcessor", dict(patch_size=PATCH, size=SQUARE)),
        tokens=("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
        image="]<]image[>[",
        video="]<]video[>[",
        ids={"image_token_index": "]<]image[>[", "video_token_index": "]<]video[>["},
        config=dict(
            merged_hidden_size=128,
            text_config=dict(
                dense_intermediate_size=64,
                shared_intermediate_size=16,
                rotary_dim=8,
                index_head_dim=8,
                index_n_heads=2,
                index_block_size=8,
                layer_types=["full_attention", "minimax_m3_sparse"],
            ),
        ),
    ),
    "kimi_k25": TinyVLM(
        "Kimi_K25Processor",
        ("Kimi_K25ImageProcessor", dict(patch_size=PATCH, max_patches=16)),
        ("Kimi_K25VideoProcessor", dict(patch_size=PATCH, max_patches=16)),
        tokens=(
            "<|media_pad|>",
            "<|kimi_k25_video_placeholder|>",
            "<|media_begin|>",
            "<|media_content|>",
            "<|media_end|>",
        ),
        image="<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        video="<|kimi_k25_video_placeholder|>",
        ids={
            "image_token_id": "<|media_pad|>",
            "video_token_id": "<|kimi_k25_video_placeholder|>",
            "vision_start_token_id": "<|media_begin|>",
            "vision_end_token_id": "<|media_end|>",
        },
        plays=False,
        config=dict(
            projection_hidden_size=32,
            text_config=dict(num_key_value_heads=4, n_group=1, topk_group=1, first_k_dense_replace=1),
            vision_config=dict(pos_emb_height=4, pos_emb_width=4),
        ),
    ),
    "molmo2": TinyVLM(
        "Molmo2Processor",
        (
            "Molmo2ImageProcessor",
            dict(size=dict(height=64, width=64), patch_size=PATCH, max_crops=2, overlap_margins=[1, 1]),
        ),
        (
            "Molmo2VideoProcessor",
            dict(size=dict(height=64, width=64), patch_size=PATCH, do_rescale=True, do_normalize=True),
        ),
        mixes=False,
        image="<|image|>",
        video="<|video|>",
        tokens=(
            "<|image|>",
            "<|video|>",
            "<im_patch>",
            "<im_col>",
            "<im_start>",
            "<low_res_im_start>",
            "<frame_start>",
            "<im_end>",
            "<frame_end>",
            "<im_low>",
        ),
        ids={
            "image_patch_id": "<im_patch>",
            "image_start_token_id": "<im_start>",
            "image_end_token_id": "<im_end>",
            "low_res_image_start_token_id": "<low_res_im_start>",
            "frame_start_token_id": "<frame_start>",
            "frame_end_token_id": "<frame_end>",
        },
        config=dict(
            text_config=dict(additional_vocab_size=16),
            vision_config=dict(image_size=[64, 64], num_position_embeddings=64),
            adapter_config=dict(vision_feature_layer=[1, 0]),
        ),
    ),
    "muse_glimmer": TinyVLM(
        "MuseGlimmerProcessor",
        ("MuseGlimmerImageProcessor", dict(patch_size=PATCH, max_image_tokens=16)),
        ("MuseGlimmerVideoProcessor", dict(patch_size=PATCH, max_video_frame_tokens=4)),
        image="<|patch|>",
        video="<|video|>",
        tokens=MUSE_TOKENS,
        ids=MUSE_IDS,
        config=dict(
            out_hidden_size=128,
            vision_config=dict(pos_emb_height=4, pos_emb_width=4),
            text_config=dict(layer_types=["sliding_attention", "full_attention"], sliding_window=24),
        ),
    ),
    "step3p7": TinyVLM(
        "Step3p7Processor",
        (
            "Step3p7ImageProcessor",
            dict(size=dict(height=64, width=64), patch_size=32, max_image_size=64, vision_patch_size=PATCH),
        ),
        image="<im_patch>",
        tokens=("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
        ids={"image_token_id": "<im_patch>"},
        config=dict(
            text_config=dict(share_expert_dim=16, num_sliding_attention_heads=4, sliding_window=24),
            vision_config=dict(image_size=64, max_position_embeddings=64),
        ),
    ),
    "inkling2": TinyVLM(
        "Inkling2Processor",
        ("Inkling2ImageProcessor", dict(size=dict(height=16, width=16))),
        ids=IMAGE_ID,
        settings=dict(image_token="<image>"),
        heavy=True,
    ),
    "deepseek_ocr2": TinyVLM(
        "DeepseekOcr2Processor",
        ("DeepseekOcr2ImageProcessor", dict()),
        ids=IMAGE_ID,
        config=dict(
            text_config=dict(mlp_layer_types=["dense", "sparse"], num_experts_per_tok=2, topk_group=1, n_group=1),
            vision_config=dict(sam_config=dict(downsample_channels=[16, 32], patch_size=16, image_size=1024)),
        ),
        heavy=True,
    ),
    "minicpmv4_6": TinyVLM(
        "MiniCPMV4_6Processor",
        ("MiniCPMV4_6ImageProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        ("MiniCPMV4_6VideoProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        **MINICPM,
        config=dict(text_config=GATED, insert_layer_id=0, vision_config=dict(insert_layer_id=0)),
    ),
    "minicpmv4_7": TinyVLM(
        "MiniCPMV4_7Processor",
        ("MiniCPMV4_6ImageProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        ("MiniCPMV4_6VideoProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        **MINICPM,
        config=dict(text_config=GATED, insert_layer_id=0, vision_config=dict(insert_layer_id=0)),
    ),
    "minicpm_ocr": TinyVLM(
        "MiniCPMOcrProcessor",
        ("MiniCPMOcrImageProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        ("MiniCPMOcrVideoProcessor", dict(patch_size=PATCH, scale_resolution=SIDE, max_slice_nums=2)),
        **MINICPM,
        config=dict(text_config=GATED, insert_layer_id=0, vision_config=dict(insert_layer_id=0)),
    ),
    "mllama": TinyVLM(
        "MllamaProcessor",
        ("MllamaImageProcessor", dict(size=SQUARE, max_image_tiles=2)),
        image="<|image|>",
        tokens=("<|image|>", "<|python_tag|>"),
        ids={"image_token_index": "<|image|>"},
        config=dict(
            text_config=dict(cross_attention_layers=[1], rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
            vision_config=dict(
                num_global_layers=1,
                attention_heads=4,
                vision_output_dim=96,
                max_num_tiles=2,
                intermediate_layers_indices=[0, 1],
                supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
            ),
        ),
    ),
}
