"""Families of a tower, a projector and a language model, with one number of tokens for each image or tile."""

from __future__ import annotations

from tests.understanding.tiny_vlms.factory import TinyVLM
from tests.understanding.tiny_vlms.words import PATCH, SIDE

SQUARE = {"height": SIDE, "width": SIDE}
PATCHES = (SIDE // PATCH) ** 2
CROPPED = dict(size={"shortest_edge": SIDE}, crop_size=SQUARE)
CLIP = ("CLIPImageProcessor", CROPPED)
LLAVA = dict(patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1)
IMAGE_INDEX = {"image_token_index": "<image>"}
IMAGE_ID = {"image_token_id": "<image>"}
IMAGE_NAMED = {"image_token": "<image>"}
AROUND = {"boi_token": "<boi>", "eoi_token": "<eoi>"}
TILES = [[SIDE // 2, SIDE], [SIDE, SIDE // 2], [SIDE, SIDE]]

ROWS: dict[str, TinyVLM] = {
    "vipllava": TinyVLM(
        "LlavaProcessor", CLIP, ids=IMAGE_INDEX, settings=LLAVA, config=dict(vision_feature_layers=[-2, -1])
    ),
    "llava_next_video": TinyVLM(
        "LlavaNextVideoProcessor",
        (
            "LlavaNextImageProcessor",
            dict(size={"shortest_edge": 16}, crop_size=dict(height=16, width=16), image_grid_pinpoints=TILES),
        ),
        ("LlavaNextVideoVideoProcessor", dict(size={"shortest_edge": 16}, crop_size=dict(height=16, width=16))),
        tokens=("<image>", "<video>"),
        ids={**IMAGE_INDEX, "video_token_index": "<video>"},
        settings=LLAVA,
        config=dict(image_grid_pinpoints=TILES, vision_config=dict(image_size=16)),
    ),
    "video_llava": TinyVLM(
        "VideoLlavaProcessor",
        ("VideoLlavaImageProcessor", CROPPED),
        ("VideoLlavaVideoProcessor", CROPPED),
        tokens=("<image>", "<video>"),
        ids={**IMAGE_INDEX, "video_token_index": "<video>"},
        settings=LLAVA,
    ),
    "aya_vision": TinyVLM(
        "AyaVisionProcessor",
        ("GotOcr2ImageProcessor", dict(size=SQUARE, crop_to_patches=True, max_patches=2)),
        tokens=("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL"),
        ids={"image_token_index": "<|IMG_PATCH|>"},
        settings=dict(patch_size=PATCH, img_size=SIDE, downsample_factor=2),
        kinds={"text_config": "cohere"},
    ),
    "cohere2_vision": TinyVLM(
        "Cohere2VisionProcessor",
        ("Cohere2VisionImageProcessor", dict(size=SQUARE, max_patches=2, patch_size=2)),
        tokens=(),
        named=IMAGE_NAMED | AROUND | {"img_line_break_token": "<br>"},
        ids=IMAGE_ID,
        config=dict(alignment_intermediate_size=64),
    ),
    "mistral3": TinyVLM(
        "PixtralProcessor",
        ("PixtralImageProcessor", dict(size={"longest_edge": SIDE}, patch_size=2 * PATCH)),
        image="[IMG]",
        tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        ids={"image_token_index": "[IMG]"},
        settings=dict(patch_size=PATCH, spatial_merge_size=2),
    ),
    "mistral_large4": TinyVLM(
        "PixtralProcessor",
        ("PixtralImageProcessor", dict(size={"longest_edge": SIDE}, patch_size=2 * PATCH)),
        image="[IMG]",
        tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        ids={"image_token_index": "[IMG]"},
        settings=dict(patch_size=PATCH, spatial_merge_size=2),
        config=dict(text_config=dict(num_key_value_heads=4, index_topk=16, index_head_dim=8, index_n_heads=32)),
    ),
    "lighton_ocr": TinyVLM(
        "LightOnOcrProcessor",
        ("PixtralImageProcessor", dict(size={"longest_edge": SIDE}, patch_size=2 * PATCH)),
        tokens=(),
        named=IMAGE_NAMED | {"image_break_token": "<break>", "image_end_token": "<end>"},
        ids=IMAGE_ID,
        settings=dict(patch_size=PATCH, spatial_merge_size=2),
    ),
    "aria": TinyVLM(
        "AriaProcessor",
        ("AriaImageProcessor", dict(max_image_size=980, min_image_size=336)),
        tokens=(),
        named=IMAGE_NAMED,
        ids=IMAGE_INDEX,
        settings=dict(size_conversion={980: 4}),
        config=dict(projector_patch_to_query_dict={49: 4}, vision_config=dict(image_size=980, patch_size=140)),
    ),
    "perception_lm": TinyVLM(
        "PerceptionLMProcessor",
        ("PerceptionLMImageProcessor", dict(tile_size=SIDE, vision_input_type="vanilla")),
        ("PerceptionLMVideoProcessor", dict(size=SQUARE)),
        tokens=(),
        named=IMAGE_NAMED | {"video_token": "<video>"},
        ids={**IMAGE_ID, "video_token_id": "<video>"},
        settings=dict(patch_size=PATCH, pooling_ratio=2),
        config=dict(
            projector_pooling_ratio=2,
            vision_config=dict(
                architecture="vit_pe_core_tiny_patch16_384",
                model_args=dict(
                    embed_dim=32,
                    depth=2,
                    num_heads=4,
                    img_size=[SIDE, SIDE],
                    patch_size=PATCH,
                    ref_feat_shape=[4, 4],
                    global_pool="",
                    use_post_transformer_norm=False,
                ),
            ),
        ),
    ),
    "ovis2": TinyVLM(
        "Ovis2Processor",
        ("Ovis2ImageProcessor", dict(size=SQUARE, max_patches=2)),
        tokens=("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"),
        ids={
            "image_token_id": "<IMG_ATOM>",
            "visual_indicator_token_ids": ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"],
        },
        config=dict(vision_config=dict(vocab_size=64)),
        settings=dict(image_seq_length=PATCHES),
    ),
    "idefics2": TinyVLM(
        "Idefics2Processor",
        ("Idefics2ImageProcessor", dict(size={"shortest_edge": 16, "longest_edge": SIDE})),
        tokens=("<image>", "<fake_token_around_image>", "<end_of_utterance>"),
        ids=IMAGE_ID,
        settings=dict(image_seq_len=4),
        config=dict(
            perceiver_config=dict(resampler_n_latents=4, resampler_depth=2, resampler_n_heads=4, resampler_head_dim=8)
        ),
    ),
    "janus": TinyVLM(
        "JanusProcessor",
        ("JanusImageProcessor", dict(size=SQUARE)),
        tokens=(),
        named=IMAGE_NAMED | AROUND,
        ids=IMAGE_ID,
        settings=dict(num_image_tokens=PATCHES),
        config=dict(
            vision_config=dict(num_image_tokens=PATCHES),
            vq_config=dict(
                base_channels=32,
                channel_multiplier=[1, 1],
                latent_channels=32,
                num_embeddings=16,
                num_patches=4,
                image_token_embed_dim=32,
                num_res_blocks=1,
            ),
        ),
    ),
    "deepseek_vl": TinyVLM(
        "DeepseekVLProcessor",
        ("DeepseekVLImageProcessor", dict(size=SQUARE)),
        tokens=(),
        named=IMAGE_NAMED,
        ids=IMAGE_ID,
        settings=dict(num_image_tokens=PATCHES),
    ),
    "deepseek_vl_hybrid": TinyVLM(
        "DeepseekVLHybridProcessor",
        ("DeepseekVLHybridImageProcessor", dict(size=SQUARE, high_res_size=dict(height=64, width=64))),
        tokens=(),
        named=IMAGE_NAMED,
        ids=IMAGE_ID,
        settings=dict(num_image_tokens=PATCHES),
        config=dict(high_res_vision_config=dict(image_size=64, global_attn_indexes=[0])),
    ),
    "lfm2_vl": TinyVLM(
        "Lfm2VlProcessor",
        (
            "Lfm2VlImageProcessor",
            dict(
                tile_size=SIDE,
                encoder_patch_size=PATCH,
                min_image_tokens=4,
                max_image_tokens=16,
                max_tiles=2,
                size=SQUARE,
            ),
        ),
        tokens=(),
        named=IMAGE_NAMED
        | {
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail": "<|img_thumbnail|>",
        },
        ids=IMAGE_ID,
        config=dict(text_config=dict(layer_types=["conv", "full_attention"])),
    ),
    "granite4_vision": TinyVLM(
        "Granite4VisionProcessor",
        (
            "LlavaNextImageProcessor",
            dict(size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
        ),
        ids=IMAGE_INDEX,
        settings=dict(
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            downsample_rate="2/4",
        ),
        config=dict(
            image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]],
            deepstack_layer_map=[(0, 0)],
            spatial_target_layers=[1, 2, 3, 4],
            text_config=dict(num_hidden_layers=5),
            downsample_rate="2/4",
            vision_config=dict(hidden_size=64),
        ),
    ),
    "granite_docling": TinyVLM(
        "GraniteDoclingProcessor",
        ("GraniteDoclingImageProcessor", dict(size=SQUARE, max_patches=2)),
        tokens=("<image>", "<fake_token_around_image>", "<global-img>"),
        ids=IMAGE_ID,
        settings=dict(image_seq_len=4),
        config=dict(vision_config=dict(scale_factor=2, deepstack_visual_indexes=[0])),
    ),
    "qianfan_ocr": TinyVLM(
        "QianfanOCRProcessor",
        ("GotOcr2ImageProcessor", dict(size=SQUARE, crop_to_patches=True, max_patches=2)),
        named={"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"},
        ids={"image_token_id": "<IMG_CONTEXT>"},
        settings=dict(image_seq_length=PATCHES // 4),
        config=dict(
            image_seq_length=PATCHES // 4, vision_config=dict(image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH])
        ),
    ),
    "llama4": TinyVLM(
        "Llama4Processor",
        ("Llama4ImageProcessor", dict(size=SQUARE, max_patches=2)),
        image="<|image|>",
        tokens=(
            "<|image|>",
            "<|image_start|>",
            "<|image_end|>",
            "<|patch|>",
            "<|tile_x_separator|>",
            "<|tile_y_separator|>",
        ),
        ids={
            "image_token_index": "<|patch|>",
            "boi_token_index": "<|image_start|>",
            "eoi_token_index": "<|image_end|>",
        },
        settings=dict(patch_size=PATCH),
        config=dict(
            text_config=dict(intermediate_size_mlp=64),
            vision_config=dict(
                vision_output_dim=32, projector_input_dim=32, projector_output_dim=32, intermediate_size=128
            ),
        ),
    ),
    "fast_vlm": TinyVLM(
        "LlavaProcessor",
        ("CLIPImageProcessor", dict(size={"shortest_edge": 64}, crop_size=dict(height=64, width=64))),
        ids=IMAGE_INDEX,
        settings=dict(patch_size=32, vision_feature_select_strategy="full", num_additional_image_tokens=0),
        config=dict(
            vision_config=dict(
                hidden_size=64,
                architecture="fastvit_mci0",
                model_args=dict(embed_dims=[8, 8, 16, 32], layers=[1, 1, 1, 1], inference_mode=True),
            )
        ),
    ),
}
