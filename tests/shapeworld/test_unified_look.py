"""The unified model that is trained on: questions about pictures, and what stays as it was."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import JanusForConditionalGeneration

from mmrl_shapeworld.answered_captions import NO, YES, whole_question
from mmrl_shapeworld.captions import Caption, Clause
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.scenes import Scene, Thing
from mmrl_shapeworld.shipped_models import UNIFIED, UNIFIED_LOOKING
from mmrl_shapeworld.unified_model import tokenizer
from tools.shapeworld_pretrain import unified_look
from tools.shapeworld_pretrain.pictures import to_pictures

PAIR = Caption((Clause(1, "red", "circle"), Clause(1, "blue", "square")))
SCENE = Scene((Thing("red", "circle", 0.2, 0.5, 0.25), Thing("blue", "square", 0.7, 0.55, 0.25)))
"""The circle is left of the square; neither is above the other by enough."""


@pytest.fixture(scope="module")
def model():
    return JanusForConditionalGeneration.from_pretrained(UNIFIED, dtype=torch.float32).eval()


def answers_to(kind: str, caption: Caption = PAIR, scene: Scene = SCENE, clean: bool = True) -> dict[str, str]:
    """Return many questions of a kind about a scene, with their answers."""
    none = torch.zeros(1, 1)
    pictures, rng = unified_look.SeenPictures([caption], [scene], [clean], none, none, none), np.random.default_rng(0)
    found = [unified_look.seen_question(pictures, 0, kind, rng) for _ in range(200)]
    assert {each.text: each.answer for each in found}.items() == {(each.text, each.answer) for each in found}
    return {each.text: each.answer for each in found}


def test_relations_hold_as_things_lie_and_not_where_one_is_missing():
    one, other = "the red circle", "the blue square"
    truths = {
        f"is {a} {relation} {b} ?": YES if (a, relation) in ((one, "left of"), (other, "right of")) else NO
        for a, b in ((one, other), (other, one))
        for relation in ("left of", "right of", "above", "below")
    }
    assert answers_to("relation") == truths
    assert set(answers_to("relation", scene=Scene(SCENE.things[:1])).values()) == {NO}


def test_numbers_and_attributes_are_those_of_the_picture_and_not_of_the_caption():
    scene = Scene((*SCENE.things[:1], Thing("red", "circle", 0.7, 0.5, 0.2)))
    numbers = answers_to("count", scene=scene)
    assert numbers["how many red circles ?"] == "two" and numbers["how many blue squares ?"] == "zero"
    attributes = answers_to("attribute", Caption((Clause(1, "red", "circle"),)), SCENE)
    assert attributes == {
        "what shape is red ?": "circle",
        "what shape is blue ?": "square",
        "what colour has the circle ?": "red",
        "what colour has the square ?": "blue",
        "is there a small red circle ?": YES,
        "is there a large red circle ?": NO,
    }


def test_a_caption_is_true_of_a_clean_picture_alone():
    own = whole_question(PAIR)
    assert answers_to("whole")[own] == YES and answers_to("whole", clean=False)[own] == NO
    assert set(answers_to("whole", scene=Scene(SCENE.things[:1])).values()) == {NO}


@pytest.mark.integration
def test_its_own_pictures_are_right_where_the_checker_has_them_strictly_right(model):
    torch.manual_seed(0)
    seen = unified_look.own_pictures(model, 64, 3)
    right = [judge(picture, c).strict for picture, c in zip(to_pictures(seen.pixels), seen.captions, strict=True)]
    known = [clean and c.holds_for(s) for clean, c, s in zip(seen.clean, seen.captions, seen.scenes, strict=True)]
    assert known == right and 10 < sum(right) < 54
    assert seen.hints.shape == (64, 64, 4) and set(Counter(seen.hints[..., 2].flatten().tolist())) <= {-100, *range(8)}
    assert ((seen.hints[..., 0] == 0) == (seen.hints[..., 2] == -100)).all()


@pytest.mark.integration
def test_drawing_is_kept_where_it_is_as_before_and_pulled_back_where_it_is_not(model):
    torch.manual_seed(0)
    seen, words = unified_look.true_pictures(model, 4, 1), tokenizer()
    moved = copy.deepcopy(model)
    same = unified_look.kept_drawing(moved, model, words, seen.captions, seen.codes)
    assert abs(same.item()) < 1e-6
    with torch.no_grad():
        moved.model.generation_head.vision_head.weight.mul_(1.5)
    away = unified_look.kept_drawing(moved, model, words, seen.captions, seen.codes)
    away.backward()
    assert away.item() > 0.01 and moved.model.language_model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_the_model_that_ships_judges_what_it_draws_and_draws_as_before(model):
    """Whole captions were at chance for the model that it was made of."""
    torch.manual_seed(0)
    looking = JanusForConditionalGeneration.from_pretrained(UNIFIED_LOOKING, dtype=torch.float32).eval()
    assert (UNIFIED_LOOKING / "config.json").read_bytes() == (UNIFIED / "config.json").read_bytes()
    seen = unified_look.own_pictures(looking, 160, 4)
    before, after = (unified_look.judgement(each, seen, "whole") for each in (model, looking))
    assert before["auc"] < 0.62 and after["auc"] > before["auc"] + 0.1
    assert unified_look.judgement(looking, seen, "count")["right"] > 0.65
    words = tokenizer()
    assert unified_look.kept_drawing(looking, model, words, seen.captions[:64], seen.codes[:64]).item() < 0.05


@pytest.mark.slow
def test_training_is_deterministic_by_seed(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(unified_look.time, "process_time", iter(range(10**6)).__next__)  # a step for each second
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(seed)
        trained = JanusForConditionalGeneration.from_pretrained(UNIFIED, dtype=torch.float32).eval()
        pictures = [unified_look.true_pictures(trained, 24, 5), unified_look.own_pictures(trained, 24, 6)]
        unified_look.look_on(trained, pictures, tmp_path / name, minutes=0.05, seed=seed)
        made.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    assert any(not torch.equal(made[0][key], made[2][key]) for key in made[0])
