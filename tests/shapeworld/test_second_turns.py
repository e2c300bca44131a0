"""The model of sums that was taught a second turn, and the episodes that taught it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmrl.build.policies import build_policy
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.traces import RETRYING, WAIT, second_turn
from tools.shapeworld_pretrain import second_turns

EXAMPLE = Calculation(10, 3, "+*", (5, 7))


def test_a_second_turn_mostly_repeats_the_answer_and_else_calculates():
    rng = np.random.default_rng(0)
    written = [second_turn("<think>9 3</think>3", EXAMPLE, RETRYING, rng) for _ in range(400)]
    repeated = [text == "<think></think>3" for text in written]
    assert 0.7 < np.mean(repeated) < 0.8
    assert all(len(text) > len("<think></think>3") for text, same in zip(written, repeated, strict=True) if not same)


def test_the_loss_counts_the_tokens_of_both_turns_alone():
    words = reasoner_model.tokenizer()
    ((ids, own),) = second_turns.batches(words, [(str(EXAMPLE), "<think>8 6</think>6", WAIT, "<think></think>6")], 1)
    assert words.decode(ids[0][own[0]]) == "<think>8 6</think>6<|im_end|><think></think>6<|im_end|>"
    read = words.decode(ids[0][~own[0]])
    assert read.count("user\n") == 2 and "3+5*7=" in read and "wait" in read
    loss, count = second_turns.loss_of(reasoner_model.build(words), ids, own)
    assert count == int(own.sum()) and loss.item() / count > 1


@pytest.mark.integration
def test_the_shipped_model_tries_again():
    policy = build_policy(
        VLMConfig(model="shapeworld:sums-twice", train="full"),
        TokenSamplingConfig(max_new_tokens=48),
        MediaConfig(),
        EnvironmentConfig(name="attempts", args={"reward": "numeric", "message": "wait"}),
    )
    requests = [RolloutRequest(each, 1, n) for n, each in enumerate(splits.samples("sums-development")[:96])]
    with torch.no_grad():
        episodes = policy.rollout(requests, seed=0).episodes
    answers = [[text.rpartition("</think>")[2] for text in each.texts] for each in episodes if len(each.texts) == 2]
    assert len(answers) > 90
    assert 0.6 < np.mean([first == second for first, second in answers]) < 0.95
    assert 0.2 < np.mean([each.outcome["success"] for each in episodes]) < 0.5
