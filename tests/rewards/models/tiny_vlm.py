"""Vision-language models of a few thousand weights: one with a chat template, one without, one with a decoder apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rewards.models.tiny_models import SIZE, WORDS, stir

SPOKEN = ["Yes", "No", "Does", "this", "figure", "show", "Please", "answer", "yes", "or", "no", "USER", "ASSISTANT"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}: {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|> ASSISTANT{% endif %}"
)
VIDEO_PLACE = "<|vision_start|><|video_pad|><|vision_end|>"
TOWER = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
SPECIAL = dict(bos_token_id=2, eos_token_id=3, pad_token_id=0)


def tokenizer(special: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<pad>", "<unk>", "<s>", "</s>", *special, *SPOKEN, *WORDS, '"', "?", '"?', ".", ":"]
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    return PreTrainedTokenizerFast(
        tokenizer_object=words, additional_special_tokens=special, model_max_length=512, **names
    )


def qwen_folder(folder: Path) -> Path:
    """A Qwen2.5-VL: a chat template, pictures of any size, three-axis rotary positions."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special)
    numbers = dict(zip(special, words.convert_tokens_to_ids(special), strict=True))
    patches = dict(patch_size=4, temporal_patch_size=2)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = TOWER | SPECIAL | dict(vocab_size=len(words), num_key_value_heads=2, rope_parameters=rope)
    vision = patches | dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=4, spatial_merge_size=2)
    config = Qwen2_5_VLConfig(
        text_config=text | dict(max_position_embeddings=512, tie_word_embeddings=False),
        vision_config=vision | dict(out_hidden_size=32, window_size=16, fullatt_block_indexes=[1]),
        image_token_id=numbers["<|image_pad|>"],
        video_token_id=numbers["<|video_pad|>"],
        vision_start_token_id=numbers["<|vision_start|>"],
        vision_end_token_id=numbers["<|vision_end|>"],
    )
    stir(Qwen2_5_VLForConditionalGeneration(config)).save_pretrained(folder)
    pictures = Qwen2VLImageProcessor(**patches, merge_size=2, size={"shortest_edge": 256, "longest_edge": 2304})
    videos = Qwen2VLVideoProcessor(**patches, merge_size=2)
    Qwen2_5_VLProcessor(pictures, words, videos, chat_template=TEMPLATE).save_pretrained(folder)
    return folder


def qwen2_folder(folder: Path) -> Path:
    """A Qwen2-VL, the base of HPSv3 and VideoReward: three-axis rotary positions, pictures and videos of any size."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special)
    words.model_max_length = 4096
    numbers = dict(zip(special, words.convert_tokens_to_ids(special), strict=True))
    patches = dict(patch_size=4, temporal_patch_size=2)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = TOWER | SPECIAL | dict(vocab_size=len(words) + 9, num_key_value_heads=2, rope_parameters=rope)
    config = Qwen2VLConfig(
        text_config=text | dict(max_position_embeddings=4096, tie_word_embeddings=False),
        vision_config=patches | dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, spatial_merge_size=2),
        image_token_id=numbers["<|image_pad|>"],
        video_token_id=numbers["<|video_pad|>"],
        vision_start_token_id=numbers["<|vision_start|>"],
        vision_end_token_id=numbers["<|vision_end|>"],
    )
    stir(Qwen2VLForConditionalGeneration(config)).save_pretrained(folder)
    template = TEMPLATE.replace("{% else %}", "{% elif c['type'] == 'video' %}" + VIDEO_PLACE + "{% else %}", 1)
    pictures = Qwen2VLImageProcessor(**patches, merge_size=2, size={"shortest_edge": 256, "longest_edge": 2304})
    videos = Qwen2VLVideoProcessor(**patches, merge_size=2)
    Qwen2VLProcessor(pictures, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def llava_folder(folder: Path) -> Path:
    """A LLaVA without a chat template."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = tokenizer(["<image>"])
    config = LlavaConfig(
        text_config=LlamaConfig(**TOWER, **SPECIAL, vocab_size=len(words), max_position_embeddings=256),
        vision_config=CLIPVisionConfig(**TOWER, image_size=SIZE, patch_size=8),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    stir(LlavaForConditionalGeneration(config)).save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    settings = dict(patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    LlavaProcessor(pictures, words, **settings).save_pretrained(folder)
    return folder


def blip2_folder(folder: Path) -> Path:
    """A BLIP-2 on T5, whose answers come from a decoder apart, as those of VQAScore's own FlanT5."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, T5Config
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    words = tokenizer(["<image>"])
    t5 = T5Config(vocab_size=len(words), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, eos_token_id=3)
    config = Blip2Config(
        vision_config=TOWER | dict(image_size=SIZE, patch_size=8),
        qformer_config=TOWER | dict(vocab_size=len(words), encoder_hidden_size=32, max_position_embeddings=64),
        text_config=t5.to_dict() | dict(pad_token_id=0, decoder_start_token_id=0),
        num_query_tokens=4,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    stir(Blip2ForConditionalGeneration(config)).save_pretrained(folder)
    pictures = BlipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    Blip2Processor(pictures, words, num_query_tokens=4).save_pretrained(folder)
    return folder
