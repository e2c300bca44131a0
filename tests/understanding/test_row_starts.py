"""The starts of rows: a prefix, another prompt, a budget and a temperature, and their replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText, chunk_requests
from mmrl.training.rollouts.collect import reward_inputs
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_png, picture

TEXT_ONLY = Sample("said", prompt="Two and two?", answer=4)
WITH_IMAGE = Sample("shown", prompt="What?", images=(as_png(picture(1)),))
EXACT = 1e-5


@pytest.fixture
def make(folder_of) -> Callable[..., VLMPolicy]:
    def made(**sampling: Any) -> VLMPolicy:
        config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", train="full")
        return VLMPolicy.from_config(config, TokenSamplingConfig(**{"max_new_tokens": 6, **sampling}))

    return made


@pytest.mark.parametrize("sample", [TEXT_ONLY, WITH_IMAGE], ids=lambda sample: sample.id)
def test_sub_groups_of_a_call_start_differently(make, sample):
    policy = make()
    hinted = RowStart("hinted", prefix="I see ", prompt="What is it? It is a picture.")
    rollout = policy.rollout([RolloutRequest(sample, 2, 0), RolloutRequest(sample, 3, 0, hinted)], seed=0)
    assert rollout.starts == [None, None, hinted, hinted, hinted]
    assert rollout.samples == [sample] * 5  # rewards read the sample as it is
    assert [text.startswith("I see ") for text in rollout.media] == [False, False, True, True, True]
    for row in (2, 3, 4):  # the prefix is no decision
        assert rollout.media[row] == "I see " + policy.vlm.decode(rollout.token_ids[row])
    assert policy.replay_gap(rollout) < EXACT
    plain, rewritten, forced = (
        policy.rollout([RolloutRequest(each, 2, 0, start)], seed=0).log_probs[0, 0]
        for each, start in (
            (sample, None),
            (replace(sample, prompt=hinted.prompt), None),
            (sample, replace(hinted, prefix="")),
        )
    )
    assert rewritten == forced != plain
    assert [each.metadata.get("start") for each in reward_inputs(rollout)][1:3] == [
        None,
        {"label": "hinted", "prefix": "I see ", "prompt": "What is it? It is a picture."},
    ]


def test_a_budget_and_a_temperature_are_the_rows_own(make):
    policy = make(temperature=0.7)
    start = RowStart("short", max_new_tokens=2, temperature=1.5)
    rollout = policy.rollout([RolloutRequest(TEXT_ONLY, 4, 0, start)], seed=0)
    assert max(map(len, rollout.token_ids)) == 2
    assert rollout.recording.temperature == 1.5
    assert policy.replay_gap(rollout) < EXACT
    again = policy.score_targets([TargetText(TEXT_ONLY, "", 0, tuple(rollout.token_ids[0]), start=start)])
    torch.testing.assert_close(again.log_probs[0], rollout.log_probs[0, : len(rollout.token_ids[0])])
    with pytest.raises(ValueError, match="share the limits"):
        policy.rollout([RolloutRequest(TEXT_ONLY, 1, 0), RolloutRequest(TEXT_ONLY, 1, 0, start)], seed=0)


def test_targets_are_read_after_their_prefix(make):
    policy = make()
    start = RowStart(prefix="I see ")
    rollout = policy.rollout([RolloutRequest(WITH_IMAGE, 2, 0, start)], seed=1)
    targets = [TargetText(WITH_IMAGE, "", 0, tuple(ids), start=start) for ids in rollout.token_ids]
    again = policy.score_targets(targets)
    torch.testing.assert_close(again.log_probs, rollout.log_probs)
    assert again.media == rollout.media


def test_first_turns_are_refused(make):
    with pytest.raises(ConfigError, match="turns that episodes begin with need an environment"):
        make().rollout([RolloutRequest(TEXT_ONLY, 1, 0, RowStart(turns=("Four.",)))], seed=0)


def test_the_last_user_message_is_rewritten():
    start = RowStart(prompt="And a hint?")
    conversation = Sample(
        "a", messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"})
    )
    assert start.sample(conversation).messages == (conversation.messages[0], {"role": "user", "content": "And a hint?"})
    parts = [{"type": "image"}, {"type": "text", "text": "Which?"}]
    with_parts = Sample("b", messages=({"role": "user", "content": parts},), images=("a.png",))
    assert start.sample(with_parts).messages[0]["content"] == [parts[0], {"type": "text", "text": "And a hint?"}]
    assert start.sample(Sample("c", prompt="One?")).prompt == "And a hint?"
    assert RowStart("x").sample(conversation) is conversation


def test_calls_hold_requests_of_equal_limits():
    long, short = RowStart("long", max_new_tokens=9), RowStart("short", max_new_tokens=3)
    requests = [RolloutRequest(TEXT_ONLY, 2, group, start) for group in range(4) for start in (long, short)]
    calls = chunk_requests(requests, 4)
    assert [[(each.group, each.start.label) for each in call] for call in calls] == [
        [(0, "long"), (1, "long")],
        [(0, "short"), (1, "short")],
        [(2, "long"), (3, "long")],
        [(2, "short"), (3, "short")],
    ]


@pytest.mark.parametrize("limits", [{"max_new_tokens": 0}, {"temperature": 0.0}])
def test_limits_that_write_nothing_or_one_text_are_refused(limits):
    with pytest.raises(ValueError, match="of a row's start"):
        RowStart(**limits)


def test_a_start_survives_json():
    for start in (RowStart("a"), RowStart("b", "p", "q", 3, 0.5, ("x", "y"))):
        assert RowStart.from_dict(start.as_dict()) == start
