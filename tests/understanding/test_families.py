"""The families of vision-language models that run every day: what their processors make of media, and what they refuse.

Replays, gradients and checkpoints are those of `vlm_matrix`, which all families go through.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm import part_of
from tests.understanding import reference_scores as plain
from tests.understanding import vlm_matrix as matrix
from tests.understanding.media import as_gif, frames, picture
from tests.understanding.tiny_vlms import FAMILIES
from tests.understanding.vlm_matrix import BuiltVLM
from tests.understanding.vlm_representatives import everyday_families


@dataclass(frozen=True)
class Facts:
    """The inputs that a family supports, by its processor in transformers 5.23.

    All take several pictures in a prompt, and left padding.
    """

    model: str
    processor: str
    never: tuple[str, ...]  # special tokens that stand for media: never generated
    video: bool = False
    inputs: tuple[str, ...] = ()  # of the model, for a picture, beside input_ids, attention_mask and pixel_values
    video_inputs: tuple[str, ...] = ()  # for a video
    text_alone: bool = True
    mixes: bool = True  # pictures and videos in one prompt
    unequal: bool = True  # two videos of unequal length in one prompt
    axes: int = 1  # of a position; 3: time, height and width
    adapts_connector: bool = True  # its connector has linear layers, which LoRA needs


QWEN = dict(
    never=("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
    video=True,
    inputs=("mm_token_type_ids", "image_grid_thw"),
    video_inputs=("mm_token_type_ids", "pixel_values_videos", "video_grid_thw"),
    axes=3,
)
TABLE = {
    "qwen2_vl": Facts("Qwen2VLForConditionalGeneration", "Qwen2VLProcessor", **QWEN),
    "qwen2_5_vl": Facts(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLProcessor",
        **QWEN | dict(video_inputs=(*QWEN["video_inputs"], "second_per_grid_ts")),
    ),
    "qwen3_vl": Facts("Qwen3VLForConditionalGeneration", "Qwen3VLProcessor", **QWEN),
    "internvl": Facts(
        "InternVLForConditionalGeneration",
        "InternVLProcessor",
        ("<IMG_CONTEXT>",),
        video=True,
        video_inputs=("pixel_values",),
        unequal=False,
    ),
    "smolvlm": Facts(
        "SmolVLMForConditionalGeneration",
        "SmolVLMProcessor",
        ("<image>",),
        video=True,
        inputs=("pixel_attention_mask",),
        video_inputs=("pixel_values", "pixel_attention_mask"),
        mixes=False,
    ),
    "idefics3": Facts(
        "Idefics3ForConditionalGeneration", "Idefics3Processor", ("<image>",), inputs=("pixel_attention_mask",)
    ),
    "llava": Facts("LlavaForConditionalGeneration", "LlavaProcessor", ("<image>",)),
    "llava_next": Facts(
        "LlavaNextForConditionalGeneration", "LlavaNextProcessor", ("<image>",), inputs=("image_sizes",)
    ),
    "llava_onevision": Facts(
        "LlavaOnevisionForConditionalGeneration",
        "LlavaOnevisionProcessor",
        ("<image>", "<video>"),
        video=True,
        inputs=("image_sizes", "batch_num_images"),
        video_inputs=("pixel_values_videos",),
        unequal=False,
    ),
    "gemma3": Facts(
        "Gemma3ForConditionalGeneration",
        "Gemma3Processor",
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        inputs=("token_type_ids",),
        adapts_connector=False,
    ),
    "paligemma": Facts(
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaProcessor",
        ("<image>",),
        inputs=("token_type_ids",),
        text_alone=False,
    ),
}
NAMES = [pytest.param(name, marks=[pytest.mark.breadth] * (name not in everyday_families())) for name in TABLE]


@pytest.fixture(scope="module", params=NAMES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuiltVLM:
    return matrix.build(request.param, tmp_path_factory.mktemp(request.param))


def test_every_tiny_family_is_in_the_table():
    assert set(TABLE) == set(FAMILIES)


def test_families_use_the_classes_and_tokens_of_the_table(built):
    facts = TABLE[built.name]
    assert type(built.model).__name__ == facts.model
    assert type(built.processor).__name__ == facts.processor
    assert (getattr(built.processor, "video_processor", None) is not None) == facts.video
    assert hasattr(built.model.model, "get_rope_index") == (facts.axes == 3)
    assert sorted(built.never) == sorted(built.processor.tokenizer.convert_tokens_to_ids(list(facts.never)))


def test_images_and_videos_become_the_inputs_of_the_table(built):
    facts, text = TABLE[built.name], {"input_ids", "attention_mask"}
    encoded = plain.encode(built.processor, "What?", [picture(1), picture(2)])
    assert set(encoded) == text | {"pixel_values", *facts.inputs}
    if facts.video:
        assert set(plain.encode(built.processor, "What?", videos=[frames(1, 4)])) == text | set(facts.video_inputs)

    elif facts.text_alone:  # dropped without a word: why a policy has to refuse them itself
        assert "pixel" not in " ".join(plain.encode(built.processor, "What?", videos=[frames(1, 4)]))


@pytest.mark.parametrize("check", [matrix.check_replays, matrix.check_greedy, matrix.check_media])
def test_answers_are_those_of_transformers(built, check):
    check(built)


@pytest.mark.integration
@pytest.mark.parametrize("check", [matrix.check_gradients, matrix.check_adapters, matrix.check_full_checkpoint])
def test_every_part_learns_and_is_saved(built, check):
    check(built)


def test_videos_of_unequal_length_replay_exactly(built):
    if TABLE[built.name].video:
        clips = [Sample(str(count), prompt="What moves?", videos=(as_gif(frames(5, count)),)) for count in (4, 6)]
        rollout = built.policy.rollout([RolloutRequest(clip, 2, group) for group, clip in enumerate(clips)], seed=0)
        assert built.policy.replay_gap(rollout) < matrix.EXACT


def test_unsupported_media_raise_by_name(built):
    facts = TABLE[built.name]
    refused = [] if facts.video else [matrix.question("clip")]
    if not facts.text_alone:
        refused.append(matrix.question("words"))
    if facts.video and not facts.mixes:
        refused.append(matrix.question("both"))
    if facts.video and not facts.unequal:
        refused.append(Sample("uneven", prompt="Alike?", videos=(as_gif(frames(1, 4)), as_gif(frames(2, 3)))))
    for sample in refused:
        with pytest.raises(DataError, match=f"{sample.id}.*{facts.processor}"):
            built.policy.rollout([RolloutRequest(sample, 1, 0)], seed=0)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_frozen_towers_have_no_trained_parameters(built, train):
    policy = matrix.a_policy(built.folder, train, {"language"})
    assert {part_of(name) for name in policy.parameters_to_train()} == {"language"}
