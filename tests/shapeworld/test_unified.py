"""The embedded unified model: what captions answer, and a Janus that draws and looks middling well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.data.listed_questions import questions_of
from mmrl.data.media.decode import load_image
from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl_shapeworld import unified_splits
from mmrl_shapeworld.answered_captions import (
    ANSWERS,
    NO,
    YES,
    PictureQuestion,
    answered_questions,
    clause_question,
    whole_question,
)
from mmrl_shapeworld.caption_mutations import mutations
from mmrl_shapeworld.captions import SEEN_KINDS, Caption, Clause, sample_caption, sample_scene
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import UNIFIED
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.unified_model import UNKNOWN, tokenizer
from tools.shapeworld_pretrain import unified as pretrain
from tools.shapeworld_pretrain.image_ar import world_codebook

PAIR = Caption((Clause(1, "red", "circle"), Clause(1, "blue", "circle")), "left of")


def test_captions_answer_numbers_unambiguous_attributes_sizes_and_relations():
    known = {each.text: each.answer for each in answered_questions(PAIR)}
    assert known == {
        "how many red circles ?": "one",
        "how many blue circles ?": "one",
        "what shape is red ?": "circle",
        "what shape is blue ?": "circle",
        "is the red circle left of the blue circle ?": YES,
        "is the red circle right of the blue circle ?": NO,
    }
    small = Clause(1, "green", "square", "small")
    assert clause_question(small) == PictureQuestion("is there a small green square ?", YES)
    assert {each.text for each in answered_questions(Caption((small,)))} == {
        *("how many green squares ?", "what colour has the square ?", "what shape is green ?"),
        *("is there a small green square ?", "is there a large green square ?"),
    }
    assert clause_question(Clause(3, "red", "square")) == PictureQuestion("how many red squares ?", "three")


def test_no_picture_of_a_caption_is_one_of_the_changed_caption():
    rng = np.random.default_rng(3)
    for _ in range(150):
        caption = sample_caption(rng, SEEN_KINDS)
        listed = unified_splits.caption_questions(caption)
        assert listed == unified_splits.caption_questions(caption)
        (changed,) = [each for each in listed if each["kind"] == "changed"]
        assert changed["answer"] == NO and [each["answer"] for each in listed if each["kind"] == "whole"] == [YES]
        scene, others = sample_scene(caption, rng), mutations(caption, deepen=False)
        (named,) = [each for each in others if changed["question"] == whole_question(each)]
        assert not named.holds_for(scene)


def test_words_of_questions_are_known_and_answers_are_single_tokens():
    words, rng = tokenizer(), np.random.default_rng(0)
    for _ in range(200):
        caption = sample_caption(rng, SEEN_KINDS)
        for each in questions_of(unified_splits.caption_questions(caption)):
            assert UNKNOWN not in words.tokenize(each.question) and len(words.tokenize(each.answer)) == 1
            assert sum(each.answer in answers for answers in ANSWERS) == 1
    assert words.decode(words("two", add_special_tokens=False).input_ids) == "two"


@pytest.mark.integration
def test_splits_have_no_pictures_to_train_on_and_as_many_captions_as_questions_to_measure():
    assert not any(sample.images for sample in samples("unified-train"))
    measured = samples("unified-validation")
    looked = [sample for sample in measured if sample.source == "look"]
    assert len(looked) == len(measured) / 2 and all(len(sample.images) == 1 for sample in looked)
    assert {sample.source for sample in measured} == {"look", *(f"draw-{form}" for form in
                                                               ("single", "count", "pair", "relation"))}  # fmt: skip
    answers = [sample.answer for sample in looked]
    assert 0.6 < answers.count(YES) / answers.count(NO) < 1.8
    assert samples("unified-later")[1] != measured[1]


class RightOrEmpty:
    """A painter that draws a right picture, or an empty one."""

    def __init__(self, right: bool) -> None:
        self.right = right

    def pictures(self, wanted, seed, draws=1):
        blank = draw(sample_scene(PAIR, np.random.default_rng(0))).resize((32, 32)).point(lambda _: 245)
        scenes = [sample_scene(Caption.from_dict(each.answer), np.random.default_rng(1)) for each in wanted]
        return [[draw(scene) if self.right else blank] for scene in scenes]


@pytest.mark.integration
def test_both_tasks_are_measured_and_their_gap():
    drawn, looked = samples("unified-development")[:2]
    wrong = next(each for answers in ANSWERS if looked.answer in answers for each in answers if each != looked.answer)
    items = [reward_input(drawn, "", 0, "a"), reward_input(looked, f" {looked.answer}", 1, "b"),
             reward_input(looked, wrong, 2, "c")]  # fmt: skip
    for right, first in ((True, 1.0), (False, 0.0)):
        context = RewardContext(models={"painter": RightOrEmpty(right)})
        found = unified_splits.BothTasks().score(items, context)
        assert found.values["right"].tolist() == [first, 1.0, 0.0]
        assert found.values["gap"].tolist() == [-first, 1.0, 0.0]


@pytest.mark.integration
def test_transformers_loads_it_and_nothing_of_ours_is_needed_to_draw_or_look():
    model = AutoModelForImageTextToText.from_pretrained(UNIFIED, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(UNIFIED)
    assert type(model).__name__ == "JanusForConditionalGeneration"
    assert processor.tokenizer.get_vocab() == tokenizer().get_vocab()
    files = [path for path in UNIFIED.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 4e6
    torch.manual_seed(0)
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "text", "text": "a red square"}]}], add_generation_prompt=True
    )
    inputs = processor(text=[text], generation_mode="image", return_tensors="pt")
    codes = model.generate(**inputs, generation_mode="image", do_sample=True, top_k=0, guidance_scale=2.0)
    assert model.decode_image_tokens(codes).shape == (1, 32, 32, 3)


@pytest.mark.slow
def test_the_codec_keeps_pictures_and_finds_their_codes():
    model = AutoModelForImageTextToText.from_pretrained(UNIFIED, dtype=torch.float32).eval()
    kept, found = pretrain.codec_skill(model, pretrain.drawings(100, 700, world_codebook()))
    assert kept > 0.85 and found > 0.97
    swapped = pretrain.drawings(40, 701, world_codebook())
    swapped = pretrain.Drawings(swapped.captions[::-1], swapped.scenes, swapped.pixels, swapped.codes, swapped.hints)
    assert pretrain.codec_skill(model, swapped)[0] < 0.3


@pytest.mark.integration
def test_base_has_medium_skill_of_both_tasks():
    """Neither hopeless nor done: reinforcement learning has room, and something to reinforce."""
    found = pretrain.skills(UNIFIED, count=96)
    assert 0.2 < found["strict"] < 0.8 and 0.4 < found["answers"] < 0.85


def test_questions_about_pictures_are_answered_as_the_picture_has_it():
    """The truth of each question of a split, read off its picture by the checker."""
    for sample in samples("unified-validation")[1:60:2]:
        things = judge(load_image(sample.images[0], sample.id), PAIR).reading.things
        words = sample.prompt.split()
        if words[:2] == ["how", "many"]:
            count = sum(thing.colour == words[2] and f"{thing.shape}s" == words[3] for thing in things)
            assert sample.answer == ("zero", "one", "two", "three", "four")[count]
        elif words[:2] == ["what", "shape"]:
            assert {thing.shape for thing in things if thing.colour == words[3]} == {sample.answer}


@pytest.mark.slow
def test_pretraining_is_deterministic_by_seed(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(pretrain.time, "process_time", iter(range(10**6)).__next__)  # a step for each second
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pretrain.train(tmp_path / name, minutes=0.05, codec_minutes=0.05, seed=seed, pictures=40)
        made.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    assert any(not torch.equal(made[0][key], made[2][key]) for key in made[0])
