"""Episodes of several turns that a server writes: what it read is what the trainer replays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm import load_vlm
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.serving.test_served_engine import SAMPLES, gap, move, settings
from tests.understanding.turn_environments import Shows


def player(folder) -> VLMPolicy:
    """Return a policy of which every fourth byte ends a turn."""
    torch.manual_seed(0)
    config = VLMConfig(model=str(folder), device="cpu", train="lora")
    vlm = load_vlm(config)
    ends = torch.cat([vlm.ends, torch.arange(0, 256, 4)])
    return VLMPolicy(replace(vlm, ends=ends), config, TokenSamplingConfig(max_new_tokens=6), MediaConfig())


@pytest.mark.integration
@pytest.mark.parametrize("serves_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_served_episodes_have_the_log_probs_of_the_trainer(server, folder_of, tmp_path, serves_first):
    policy = player(folder_of("qwen3_vl"))
    environment = Shows(["picture", "text"], instructions="You may look.")
    if not serves_first:
        policy.play_in(environment)
    policy.serve(settings(server.url_of("lora")), tmp_path)
    if serves_first:
        policy.play_in(environment)
    move(policy)
    rollout = policy.rollout([RolloutRequest(sample, 3, group) for group, sample in enumerate(SAMPLES)], seed=0)
    assert max(len(episode.texts) for episode in rollout.episodes) == 3
    assert gap(policy, rollout) <= 1e-5
    assert policy.replay_gap(rollout) < 1e-4
    assert "You may look." in policy.vlm.tokenizer.decode(rollout.recording.prompts[0].inputs["input_ids"][0])


@pytest.mark.slow
def test_clips_between_turns_are_sent(server, folder_of, tmp_path):
    policy = player(folder_of("qwen3_vl"))
    policy.serve(settings(server.url_of("lora")), tmp_path)
    policy.play_in(Shows(["clip"]))
    rollout = policy.rollout([RolloutRequest(sample, 3, group) for group, sample in enumerate(SAMPLES)], seed=0)
    assert max(len(episode.texts) for episode in rollout.episodes) > 1
    assert gap(policy, rollout) <= 1e-5
