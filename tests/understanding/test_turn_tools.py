"""Tools that are called in turns: a crop becomes the picture of the next turn, for a model with real pictures."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmrl.config.environment import EnvironmentConfig
from mmrl.data.sample import Sample
from mmrl.environments import build_environment
from mmrl.rollout_request import TargetText
from tests.understanding.media import as_png, picture

EXACT = 2e-5
PAGE = Sample("page", prompt="What is in the corner?", images=(as_png(picture(1, 64, 64)),))


def call(**arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'crop', 'arguments': arguments})}\n</tool_call>"


@pytest.mark.integration
@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_a_crop_is_the_picture_of_the_next_turn(player, monkeypatch, name):
    policy = player(name)
    config = EnvironmentConfig(tools=[{"name": "crop"}, {"name": "calculator"}], format="hermes", max_turns=4)
    policy.play_in(build_environment(config, policy.vlm.family.name))
    monkeypatch.setattr(policy, "_context", None)  # to a tiny model each byte of the instructions is a token
    turns = (call(image=0, box=[0, 0, 500, 500]), call(image=7, box=[0, 0, 1, 1]), "A tree.")
    rollout = policy.score_targets([TargetText(PAGE, "", 0, turns=turns)])
    (episode,) = rollout.episodes
    crop, rejected = episode.observations
    assert isinstance(crop.images[0], Image.Image)
    assert not rejected.images
    assert "tool_response" in rejected.text
    assert (episode.outcome["answer"], episode.outcome["problems"]) == ("A tree.", {"refused": 1})
    assert [observed.observation.encoded.images for observed in rollout.recording.observed[0]] == [1, 0]
    assert policy.replay_gap(rollout) < EXACT
    prompt = policy.vlm.tokenizer.decode(rollout.recording.prompts[0].inputs["input_ids"][0])
    assert '"calculator"' in prompt


def test_marks_of_calls_that_are_special_tokens_are_read(player):
    vlm = player("qwen3_vl").vlm
    ids = [*vlm.encode("ab"), vlm.end]
    end = vlm.tokenizer.convert_ids_to_tokens(vlm.end)
    assert vlm.decode(ids) == "ab"
    assert vlm.decode(ids, kept=(end,)) == f"ab{end}"
    assert vlm.decode(ids, kept=("<|vision_start|>",)) == "ab"
