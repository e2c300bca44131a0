"""From samples to inputs, with nothing lost: what the families' own tests do not reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.data.media.budget import ImageBudget, MediaBudget, VideoBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, stackable
from mmrl.understanding.prompt_encoder import PromptEncoder
from tests.understanding.media import as_gif, as_png, frames, picture

READER = MediaReader(MediaBudget())
SEEN = Sample("seen", prompt="What?", images=(as_png(picture(1)),))
FILMED = Sample("filmed", prompt="What?", videos=(as_gif(frames(2, 4)),))
BOTH = Sample("both", prompt="What?", images=SEEN.images, videos=FILMED.videos)
TEXT_ONLY = Sample("said", prompt="What is it?")


def with_template(vlm, template):
    """The same model under another chat template; the processor of other tests is left alone."""
    kind = type(vlm.processor)
    parts = {name: getattr(vlm.processor, name) for name in kind.get_attributes()}
    further = {name: getattr(vlm.processor, name) for name in ("image_seq_length",) if hasattr(vlm.processor, name)}
    return replace(vlm, processor=kind(**parts, **further, chat_template=template))


SILENT = (
    "{% for m in messages %}{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}{% endfor %}{% endfor %}"
)
PICTURES_ALONE = (
    "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<IMG_CONTEXT>"
    "{% elif p['type'] == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("sample", [SEEN, FILMED])
def test_media_omitted_by_the_chat_template_raise(vlm_of, sample):
    encoder = PromptEncoder(with_template(vlm_of("qwen3_vl"), SILENT), READER)
    with pytest.raises(DataError, match=f"'{sample.id}' holds 1 .*Qwen3VLProcessor made 0 places .* would be lost"):
        encoder.encode(sample)


def test_videos_omitted_beside_an_image_raise(vlm_of):
    """Both become `pixel_values` of InternVL, so that the picture's would hide that the video's are missing."""
    vlm = with_template(vlm_of("internvl"), PICTURES_ALONE)
    with pytest.raises(DataError, match=r"'both' holds 1 video\(s\).*made 0 places"):
        PromptEncoder(vlm, READER).encode(BOTH)


def test_unsupported_inputs_raise(vlm_of):
    mismatched = replace(vlm_of("qwen3_vl"), model=vlm_of("llava").model)
    with pytest.raises(
        DataError, match=r"'seen': Qwen3VLProcessor makes image_grid_thw, .* does not take: it would be"
    ):
        PromptEncoder(mismatched, READER).encode(SEEN)


@pytest.mark.parametrize(
    ("name", "mark"), [("qwen3_vl", "<|image_pad|>"), ("qwen3_vl", "<|vision_end|>"), ("gemma3", "<image_soft_token>")]
)
def test_texts_with_media_tokens_raise(vlm_of, name, mark):
    encoder = PromptEncoder(vlm_of(name), READER)
    with pytest.raises(DataError) as refused:
        encoder.encode(replace(SEEN, prompt=f"What is {mark}?"))
    assert f"sample 'seen': its text holds {mark}" in str(refused.value)


def test_validation_precedes_reading(vlm_of):
    with pytest.raises(DataError, match="'far' holds a video, which LlavaProcessor does not take"):
        PromptEncoder(vlm_of("llava"), READER).encode(Sample("far", videos=("no/such/file.mp4",)))


def test_images_and_videos_are_resized_to_their_budgets(vlm_of):
    budget = MediaBudget(ImageBudget(max_pixels=32 * 32), VideoBudget(min_frames=2, max_frames=2, max_pixels=32 * 32))
    vlm = vlm_of("qwen3_vl")
    sample = Sample(
        "large", prompt="What?", images=(as_png(picture(1, 64, 64)),), videos=(as_gif(frames(2, 4, side=64)),)
    )
    free, tight = (PromptEncoder(vlm, MediaReader(each)).encode(sample).inputs for each in (MediaBudget(), budget))
    assert free["image_grid_thw"].tolist() == [[1, 8, 8]]
    assert free["video_grid_thw"].tolist() == [[2, 8, 8]]
    assert tight["image_grid_thw"].tolist() == [[1, 4, 4]]
    assert tight["video_grid_thw"].tolist() == [[1, 4, 4]]


def test_prompts_state_the_times_of_frames(vlm_of):
    """Every second frame of 8 at 2 a second: Qwen3-VL writes the times of each pair into the text."""
    vlm = vlm_of("qwen3_vl")
    reader = MediaReader(MediaBudget(video=VideoBudget(fps=1.0)))
    prompt = PromptEncoder(vlm, reader).encode(Sample("slow", prompt="When?", videos=(as_gif(frames(2, 8)),)))
    text = vlm.tokenizer.decode(prompt.inputs["input_ids"][0])
    chosen = [round(place * 7 / 3) / 2 for place in range(4)]
    for start, end in (chosen[:2], chosen[2:]):
        assert f"<{(start + end) / 2:.1f} seconds>" in text


def test_prompts_are_left_padded(vlm_of):
    vlm = vlm_of("qwen3_vl")
    prompts = [PromptEncoder(vlm, READER).encode(each) for each in (TEXT_ONLY, BOTH)]
    short, long = (prompt.length for prompt in prompts)
    joined = collate(prompts, padding=vlm.padding)
    assert joined["attention_mask"].tolist() == [[0] * (long - short) + [1] * short, [1] * long]
    assert (
        joined["input_ids"][0].tolist() == [vlm.padding] * (long - short) + prompts[0].inputs["input_ids"][0].tolist()
    )
    assert joined["mm_token_type_ids"].shape == (2, long)
    assert joined["pixel_values"].equal(prompts[1].inputs["pixel_values"])


def test_tiles_are_padded_with_zeros(vlm_of):
    encoder = PromptEncoder(vlm_of("llava_onevision"), READER)
    pair = replace(SEEN, images=2 * SEEN.images)
    prompts = [encoder.encode(each) for each in (SEEN, pair)]
    assert [prompt.inputs["pixel_values"].shape[:2] for prompt in prompts] == [(1, 5), (2, 1)]
    joined = collate(prompts, padding=0)
    assert joined["pixel_values"].shape[:2] == (3, 5)
    assert not joined["pixel_values"][1:, 1:].any()
    assert joined["batch_num_images"].tolist() == [1, 2]


def test_videos_are_batched_by_shape(vlm_of):
    encoder = PromptEncoder(vlm_of("llava_onevision"), READER)
    longer = replace(FILMED, videos=(as_gif(frames(3, 6)),))
    prompts = [encoder.encode(each) for each in (TEXT_ONLY, FILMED, longer, SEEN, FILMED)]
    assert stackable(prompts) == [[0, 1, 3, 4], [2]]
    assert stackable(prompts[:1]) == [[0]]
    encoder = PromptEncoder(vlm_of("qwen3_vl"), READER)  # videos of any length are one list of patches
    assert stackable([encoder.encode(each) for each in (TEXT_ONLY, FILMED, longer)]) == [[0, 1, 2]]


def test_prompts_continue_with_a_prefill(vlm_of):
    vlm = vlm_of("paligemma")
    prompt = PromptEncoder(vlm, READER).encode(SEEN)
    begun = prompt.followed_by([70, 71], vlm.family)
    assert begun.inputs["input_ids"][0, -2:].tolist() == [70, 71]
    assert begun.inputs["attention_mask"].tolist() == [[1] * (prompt.length + 2)]
    assert begun.inputs["token_type_ids"].tolist() == [[0] * prompt.length + [1, 1]]  # what is written is causal
    assert prompt.followed_by([], vlm.family) is prompt


def test_prompts_with_missing_per_token_values_raise():
    bare = EncodedPrompt({name: torch.ones(1, 3, dtype=torch.long) for name in ("input_ids", "attention_mask")}, 0, 0)
    typed = EncodedPrompt(bare.inputs | {"token_type_ids": torch.ones(1, 3, dtype=torch.long)}, 0, 0)
    with pytest.raises(DataError, match="some prompts of this batch have token_type_ids and some have none"):
        collate([bare, typed], padding=0)
