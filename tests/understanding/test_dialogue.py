"""Later turns read what is new alone, and equal pictures are encoded once: no number changes by either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mmrl.environments import Observation, Step
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding import dialogue, repeated_media
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import packed_scores
from tests.understanding.media import picture
from tests.understanding.test_turns import CONVERSATIONAL, EVERY_DAY, EXACT, TEXT_ONLY, WITH_IMAGE, gradient
from tests.understanding.turn_environments import SceneEpisode, Shows

SHARING = [
    pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.breadth)
    for name in CONVERSATIONAL
    if name != "gemma3"
]
WAYS = {"repeated media", "dialogue with images", "dialogue of text"}


@dataclass
class Screens(SceneEpisode):
    """Shows one of two pictures of equal size after each action, by the parity of its length."""

    def step(self, action: str | None) -> Step:
        step = super().step(action)
        if step.observation is None or not step.observation.images:
            return step
        return Step(Observation("See.", (picture(70 + len(action or "") % 2, 40, 32),)))


class ShowsScreens(Shows):
    def begin(self, sample, reader) -> Screens:
        return Screens(self.kinds)


def play(policy: VLMPolicy, *kinds: Any, n: int = 6, waves: int = 1) -> Rollout:
    policy.play_in(ShowsScreens(kinds or ("picture", "text", "picture")), waves=waves)
    return policy.rollout([RolloutRequest(each, n, group) for group, each in enumerate((WITH_IMAGE, TEXT_ONLY))], 0)


@pytest.fixture
def measured(player):
    """From a family's name to its policy and what is measured of it, anew."""

    def of(name: str, **known: bool) -> tuple[VLMPolicy, dict[str, bool]]:
        policy = player(name)
        policy.vlm.measured.clear()
        policy.vlm.measured.update(known)
        return policy, policy.vlm.measured

    return of


def without(policy: VLMPolicy) -> None:
    """Let a policy compute everything again."""
    policy.vlm.measured.update(dict.fromkeys(WAYS, False))


@pytest.mark.integration
@pytest.mark.parametrize("name", SHARING)
def test_reading_new_turns_alone_changes_no_number(measured, name):
    policy, ways = measured(name)
    found = play(policy)
    assert ways == dict.fromkeys(WAYS, True)
    assert policy.replay_gap(found) < EXACT
    without(policy)
    expected = play(policy)
    assert found.token_ids == expected.token_ids
    torch.testing.assert_close(found.log_probs, expected.log_probs, atol=EXACT, rtol=0)
    assert policy.replay_gap(found) < EXACT


@pytest.mark.parametrize("name", SHARING)
def test_encoding_equal_pictures_once_keeps_scores_and_gradients(measured, name):
    policy, ways = measured(name)
    recording = play(policy).recording
    weights = torch.linspace(-1, 1, recording.tokens.shape[1])
    scores, gradients = [], []
    for _ in range(2):
        scores.append(packed_scores(policy.vlm, recording, fused=False)[0])
        gradients.append(gradient(policy, (scores[-1] * weights).sum()))
        assert ways["repeated media"] == (len(scores) == 1)
        without(policy)
    torch.testing.assert_close(*scores, atol=1e-5, rtol=0)
    assert gradients[1].norm() > 1
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[1].norm()


def test_each_distinct_picture_is_encoded_once(measured, monkeypatch):
    policy, _ = measured("qwen3_vl")
    recording = play(policy).recording
    grids = []
    base = policy.vlm.model.base_model
    encode = base.get_image_features

    def counted(pixel_values, image_grid_thw=None, **rest):
        grids.append(len(image_grid_thw))
        return encode(pixel_values, image_grid_thw, **rest)

    monkeypatch.setattr(base, "get_image_features", counted)
    monkeypatch.setattr(counted, "__signature__", repeated_media.inspect.signature(encode), raising=False)
    packed_scores(policy.vlm, recording, fused=False)
    units = [unit for row in range(len(recording.prompt_of)) for unit in recording.continuation(row).media]
    pictures = {id(unit) for unit in units if unit.images}
    assert grids == [1 + len(pictures)] and len(units) > 2 * len(pictures)


def of_equal_size(units):
    """Take every picture of one size for the first of it, as a stale feature would be."""
    sizes = [tuple(tuple(value.shape) for value in unit.inputs.values() if value.is_floating_point()) for unit in units]
    distinct = [units[sizes.index(size)] for size in dict.fromkeys(sizes)]
    return distinct, [list(dict.fromkeys(sizes)).index(size) for size in sizes]


def test_another_rows_picture_would_be_noticed(measured, monkeypatch):
    policy, _ = measured("qwen3_vl")
    rollout = play(policy)
    assert policy.replay_gap(rollout) < EXACT
    monkeypatch.setattr(repeated_media, "_distinct", of_equal_size)
    assert policy.replay_gap(rollout) > 10 * EXACT
    policy.vlm.measured.clear()  # the measurement sees it too, and pixels are read
    assert policy.replay_gap(rollout) < EXACT
    assert policy.vlm.measured == {"repeated media": False}


@pytest.mark.integration
@pytest.mark.parametrize("waves", [1, 2])
def test_a_dialogue_that_changes_logits_is_not_gone_on_with(measured, monkeypatch, waves):
    policy, ways = measured("qwen3_vl")
    read = dialogue._read

    def forgetful(vlm, prefix, steps):
        prefix.mask[:, -4:] = 0
        return read(vlm, prefix, steps)

    without(policy)
    expected = play(policy, waves=waves)
    ways.clear()
    monkeypatch.setattr(dialogue, "_read", forgetful)
    found = play(policy, waves=waves)
    assert not ways["dialogue with images"]
    assert found.token_ids == expected.token_ids
    assert policy.replay_gap(found) < EXACT
    ways["dialogue with images"] = True  # the negative control: unmeasured, it is wrong
    assert policy.replay_gap(play(policy, waves=waves)) > 10 * EXACT


@pytest.mark.integration
def test_a_clip_is_read_with_all_that_came_before(measured):
    policy, ways = measured("qwen3_vl")
    found = play(policy, "picture", "clip", "picture")
    assert ways["dialogue with images"] and policy.replay_gap(found) < EXACT


@pytest.mark.integration
def test_nothing_outlives_an_update_of_the_weights(new_player):
    policy = new_player("qwen3_vl")
    before = play(policy)
    with torch.no_grad():
        for name, parameter in policy.parameters_to_train().items():
            if "visual" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    assert policy.replay_gap(before) > 10 * EXACT
    assert policy.replay_gap(play(policy)) < EXACT
