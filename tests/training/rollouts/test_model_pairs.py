"""Pairs of two models' answers: the best of one against the worst of the other, read by the policy that learns."""

from __future__ import annotations

import math

import pytest
import torch

from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.data.prompts import PromptSampler
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite, WeightedReward
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.rollouts.model_pairs import ModelPairs, ModelWriters, best_and_worst
from mmrl.training.run.timers import Phases
from tests.training.token_policy import TokenPolicy, questions


class First(Reward):
    """The first token of a text, over 3."""

    name, needs, range = "first", ("text",), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        return float((item.text or "0").split()[0]) / 3 if item.text else 0.0


def always(token: int) -> TokenPolicy:
    """A model whose texts are one token, always the same."""
    model = TokenPolicy()
    with torch.no_grad():
        model.logits.fill_(-30.0)
        model.logits[:, 0, token] = 30.0
        model.logits[:, 1:, 0] = 30.0
    return model


def pairs(chosen: TokenPolicy, rejected: TokenPolicy, policy: TokenPolicy | None = None, **settings) -> ModelPairs:
    return ModelPairs(
        policy=policy or TokenPolicy(),
        prompts=PromptSampler(questions(8), 4, seed=0),
        suite=RewardSuite([WeightedReward(First())]),
        writers=ModelWriters(NamedModel(chosen), NamedModel(rejected)),
        group_size=settings.pop("group_size", 4),
        micro_batch=8,
        seed=0,
        **settings,
    )


def test_the_best_of_one_is_chosen_and_the_worst_of_the_other_rejected():
    total = torch.tensor([0.2, 0.9, 0.1, 1.0, 0.5, 0.4, 0.6, math.nan])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    sides = torch.tensor([[True, False], [True, False], [False, True], [False, True]] * 2)
    assert best_and_worst(total, groups, sides, 0.0) == [(1, 2)]  # in group 1 the worst rejected is better, or unknown
    assert best_and_worst(total, groups, sides, 0.85) == []
    assert best_and_worst(total, groups, torch.ones(8, 2, dtype=torch.bool), 0.0) == [(3, 2), (6, 5)]


def test_the_policy_reads_what_the_two_models_wrote():
    policy = TokenPolicy()
    found = pairs(always(3), always(1), policy).collect(0, 0.0, Phases())
    assert policy.rollouts == 0
    assert found.metrics["pairs/share"] == 1.0
    assert found.metrics["pairs/total"] == found.metrics["pairs/spread"] == pytest.approx(2 / 3)
    assert found.metrics["reward/first"] == pytest.approx(2 / 3)  # two answers of 1 and two of 1/3 to each prompt
    texts = [text for batch in found.micro_batches for text in batch.rollout.media]
    assert texts == ["3", "1"] * 4
    batch = found.micro_batches[0]
    assert batch.advantages.tolist() == [1.0, -1.0] * 4
    torch.testing.assert_close(
        batch.rollout.log_probs[0, 0],
        policy.logits[int(batch.rollout.samples[0].id[1:]), 0].log_softmax(-1)[3].detach(),
    )


def test_where_the_rejected_are_better_nothing_is_learnt():
    policy = TokenPolicy()
    found = pairs(always(1), always(3), policy).collect(0, 0.0, Phases())
    assert found.metrics["pairs/share"] == found.metrics["pairs/spread"] == 0.0
    assert [batch.scored_rows for batch in found.micro_batches] == [0]
    objective = PreferenceLearning(policy, OnlineDPOConfig())
    objective.accumulate(found.micro_batches, 1.0, [0], MetricAccumulator())
    assert policy.logits.grad is None


def test_one_model_writes_both_sides():
    policy = TokenPolicy(spread=2.0)
    source = pairs(policy, policy, policy, group_size=5)
    found = source.collect(0, 0.0, Phases())
    assert policy.rollouts == 3  # 20 answers in calls of 8
    rewards = [float((text or "0").split()[0]) for batch in found.micro_batches for text in batch.rollout.media]
    assert all(chosen > rejected for chosen, rejected in zip(rewards[0::2], rewards[1::2], strict=True))
    again = pairs(policy, policy, policy, group_size=5)
    again.load_state_dict(source.state_dict())
    assert again.prompts.state_dict() == source.prompts.state_dict()


def test_two_models_need_an_even_group():
    with pytest.raises(ConfigError, match=r"data.group_size: 5 answers"):
        pairs(always(3), always(1), group_size=5)
