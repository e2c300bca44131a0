"""Every family of vision-language models, tiny and random, through the classes that load the published ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.config.policy import LoraConfig, ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm import part_of
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding import reference_scores as plain
from tests.understanding.media import as_gif, as_png, frames, picture
from tests.understanding.tiny_vlms import FAMILIES
from tests.understanding.vlm_representatives import everyday_families

TEMPERATURE = 0.7
EXACT = 2e-5  # float32: a log-probability of -10 computed in two shapes; a wrong position costs 0.1 and more


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
PICTURES = {"one": [picture(1)], "two": [picture(2, 48, 32), picture(3)], "both": [picture(4)]}
VIDEOS = {"clip": [frames(5, 4)], "longer": [frames(6, 6)], "both": [frames(7, 3)]}
TEXTS = {
    "one": "What is it?",
    "two": "And of these two, which is the larger?",
    "clip": "What moves?",
    "longer": "And here, and where to?",
    "both": "Alike?",
    "words": "Two and two?",
}


def samples_of(name: str) -> list[Sample]:
    """Return the samples above that a family supports."""
    facts = TABLE[name]
    fit = {
        "one": True,
        "two": True,
        "clip": facts.video,
        "longer": facts.video,
        "both": facts.video and facts.mixes,
        "words": facts.text_alone,
    }
    return [question(key) for key, takes in fit.items() if takes]


def question(key: str) -> Sample:
    pictures = tuple(as_png(each) for each in PICTURES.get(key, []))
    videos = tuple(as_gif(each) for each in VIDEOS.get(key, []))
    return Sample(key, prompt=TEXTS[key], images=pictures, videos=videos)


@dataclass(frozen=True)
class Ran:
    """A family whose every part is trained, and what it wrote."""

    name: str
    folder: Path
    policy: VLMPolicy
    rollout: Rollout
    model: Any  # the same, loaded by transformers alone
    processor: Any

    @property
    def facts(self) -> Facts:
        return TABLE[self.name]

    @property
    def never(self) -> list[int]:
        return self.processor.tokenizer.convert_tokens_to_ids(list(self.facts.never))

    def alone(self, row: int) -> dict[str, Any]:
        key = self.rollout.samples[row].id
        return plain.encode(self.processor, TEXTS[key], PICTURES.get(key, []), VIDEOS.get(key, []))


@pytest.fixture(scope="module", params=NAMES)
def ran(request: pytest.FixtureRequest, folder_of: Callable[[str], Path]) -> Ran:
    folder = folder_of(request.param)
    policy = a_policy(folder, train="full")
    requests = [RolloutRequest(sample, 2, group) for group, sample in enumerate(samples_of(request.param))]
    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    return Ran(request.param, folder, policy, policy.rollout(requests, seed=0), model, processor)


def a_policy(folder: Path, train: str, tower: bool = True, connector: bool = True, **changes: Any) -> VLMPolicy:
    parts = dict(vision=ModelPartConfig(train=tower), connector=ModelPartConfig(train=connector))
    config = VLMConfig(
        model=str(folder), device="cpu", train=train, lora=LoraConfig(rank=2, alpha=4), **parts, **changes
    )
    return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=6, temperature=TEMPERATURE))


def test_every_tiny_family_is_in_the_table():
    assert set(TABLE) == set(FAMILIES)


def test_families_use_the_classes_of_the_table(ran):
    assert type(ran.model).__name__ == ran.facts.model
    assert type(ran.processor).__name__ == ran.facts.processor
    assert (getattr(ran.processor, "video_processor", None) is not None) == ran.facts.video
    assert hasattr(ran.model.model, "get_rope_index") == (ran.facts.axes == 3)


def test_images_and_videos_become_the_inputs_of_the_table(ran):
    text = {"input_ids", "attention_mask"}
    encoded = plain.encode(ran.processor, "What?", [picture(1), picture(2)])
    assert set(encoded) == text | {"pixel_values", *ran.facts.inputs}
    if ran.facts.video:
        assert set(plain.encode(ran.processor, "What?", videos=[frames(1, 4)])) == text | set(ran.facts.video_inputs)

    elif ran.facts.text_alone:  # dropped without a word: why a policy has to refuse them itself
        assert "pixel" not in " ".join(plain.encode(ran.processor, "What?", videos=[frames(1, 4)]))


def test_rollouts_replay_exactly(ran):
    assert ran.policy.replay_gap(ran.rollout) < EXACT
    last = ran.rollout.rows - 1
    assert ran.policy.replay_gap(ran.rollout.select([last, 0])) < EXACT


@torch.no_grad()
def test_batched_log_probs_equal_single_prompts(ran):
    for row, answer in enumerate(ran.rollout.token_ids):
        expected = plain.log_probs(ran.model, ran.alone(row), answer, TEMPERATURE, ran.never)
        torch.testing.assert_close(ran.rollout.log_probs[row, : len(answer)], expected, atol=EXACT, rtol=0)


@torch.no_grad()
def test_log_probs_depend_on_media(ran):
    """The control of the test above: it can tell one picture from another, and one frame."""
    answer = ran.rollout.token_ids[0]
    encoded = [{"pictures": [picture(seed)]} for seed in (1, 9)]
    if ran.facts.video:
        encoded += [{"videos": [frames(5, 4)]}, {"videos": [frames(5, 4)[::-1].copy()]}]
    scores = [plain.log_probs(ran.model, plain.encode(ran.processor, "What?", **each), answer) for each in encoded]
    for one, other in zip(scores[::2], scores[1::2], strict=True):
        assert (one - other).abs().max() > 100 * EXACT


@pytest.mark.integration
def test_gradients_equal_plain_passes_and_reach_the_vision_tower(ran):
    ran.model.zero_grad()
    for row, answer in enumerate(ran.rollout.token_ids):
        plain.log_probs(ran.model, ran.alone(row), answer, TEMPERATURE, ran.never).sum().backward()
    trained = ran.policy.parameters_to_train()
    for parameter in trained.values():
        parameter.grad = None
    columns = range(ran.rollout.log_probs.shape[1])
    ran.policy.replay(ran.rollout, columns, lambda decisions: decisions.log_probs.sum().backward())
    expected = {name: parameter.grad for name, parameter in ran.model.named_parameters()}
    assert set(trained) == set(expected)
    for part in ("vision", "connector", "language"):
        names = [name for name in expected if part_of(name) == part and expected[name] is not None]
        size = sum(expected[name].square().sum() for name in names).sqrt()
        off = sum((trained[name].grad - expected[name]).square().sum() for name in names).sqrt()
        assert size > 1
        assert off < 1e-4 * size


@torch.no_grad()
def test_greedy_answers_equal_generate(ran):
    sampling = TokenSamplingConfig(temperature=0, max_new_tokens=6)
    requests = [
        RolloutRequest(sample, 1, group, sampling=sampling) for group, sample in enumerate(samples_of(ran.name))
    ]
    rollout = ran.policy.rollout(requests, seed=0)
    for row, answer in enumerate(rollout.token_ids):
        prompt = ran.alone(2 * row)
        written = ran.model.generate(**prompt, max_new_tokens=6, do_sample=False, suppress_tokens=ran.never)
        assert answer == written[0, prompt["input_ids"].shape[1] :].tolist()


def test_unsupported_media_raise_by_name(ran):
    facts = ran.facts
    validation_errors = {} if facts.video else {"clip": question("clip")}
    if not facts.text_alone:
        validation_errors["words"] = question("words")
    if facts.video and not facts.mixes:
        validation_errors["both"] = question("both")
    if facts.video and not facts.unequal:
        validation_errors["uneven"] = Sample(
            "uneven", prompt="Alike?", videos=(as_gif(frames(1, 4)), as_gif(frames(2, 3)))
        )
    for name, sample in validation_errors.items():
        with pytest.raises(DataError, match=f"{name}.*{facts.processor}"):
            ran.policy.rollout([RolloutRequest(sample, 1, 0)], seed=0)


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", "full"])
def test_trained_parameters_are_saved_and_loaded(ran, train, tmp_path):
    few = ran.rollout.select([0, ran.rollout.rows - 1])
    trained = move(a_policy(ran.folder, train, connector=ran.facts.adapts_connector))
    assert trained.replay_gap(few) > 100 * EXACT
    trained.save(tmp_path)
    again = a_policy(ran.folder, train, connector=ran.facts.adapts_connector)
    again.load(tmp_path)
    expected = of(trained, few)
    assert again.replay_gap(expected) == 0
    if train == "lora":
        loaded = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(ran.folder), tmp_path)
    else:
        loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
        assert type(AutoProcessor.from_pretrained(tmp_path)).__name__ == ran.facts.processor
    answer = ran.rollout.token_ids[0]
    with torch.no_grad():
        scores = plain.log_probs(loaded, ran.alone(0), answer, TEMPERATURE, ran.never)
    torch.testing.assert_close(expected.log_probs[0, : len(answer)], scores, atol=EXACT, rtol=0)


def test_adapters_are_added_to_vision_tower_and_connector(ran):
    if not ran.facts.adapts_connector:
        with pytest.raises(ConfigError, match=r"policy\.connector\.train: .*" + ran.facts.model):
            a_policy(ran.folder, "lora")
        return
    policy = move(a_policy(ran.folder, "lora"))
    policy.replay(ran.rollout.select([0]), range(6), lambda decisions: decisions.log_probs.sum().backward())
    moved = {part_of(name) for name, p in policy.parameters_to_train().items() if p.grad is not None and p.grad.any()}
    assert moved == {"vision", "connector", "language"}


@pytest.mark.parametrize("train", ["lora", "full"])
def test_frozen_towers_have_no_trained_parameters(ran, train):
    policy = a_policy(ran.folder, train, tower=False, connector=False)
    assert {part_of(name) for name in policy.parameters_to_train()} == {"language"}


def move(policy: VLMPolicy) -> VLMPolicy:
    """Every trained parameter a little elsewhere: a fresh adapter changes nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def of(policy: VLMPolicy, rollout: Rollout) -> Rollout:
    """The same answers, as likely as a policy finds them."""
    scored = rollout.select(range(rollout.rows))
    with torch.no_grad():
        policy.replay(rollout, range(6), lambda decisions: scored.log_probs.copy_(decisions.log_probs))
    return scored
