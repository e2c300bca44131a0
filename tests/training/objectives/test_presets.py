"""Every name of an algorithm on rollouts, from its YAML to a policy that has learnt."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from tests.training.objectives.scored_batches import OF_STEPS, gradient_of
from tests.training.token_policy import TokenPolicy, questions

WEIGHTS = {"begins": 1.0, "short": 0.5}


def scored(rollout) -> RewardOutput:
    """Return two rewards: for the requested beginning, and for shortness."""
    texts = [(sample.answer[0], text) for sample, text in zip(rollout.samples, rollout.media, strict=True)]
    begins = torch.tensor([float(text[:1] == expected) for expected, text in texts])
    short = torch.tensor([1 - len(text.split()) / 3 for _, text in texts])
    values = {"begins": begins, "short": short, "total": begins + 0.5 * short}
    return RewardOutput(
        values={name: column.numpy() for name, column in values.items()}, status={}, detail=[{}] * rollout.rows
    )


def learn(config: PolicyGradientConfig, seed: int, sign: float = 1.0) -> tuple[float, float]:
    """The mean reward before and after 30 iterations of two updates each, over 256 answers."""
    policy = TokenPolicy(prompts=4, spread=0.1)
    objective, credit = PolicyGradient(policy, config, max_decisions=3), AdvantageEstimator(config.advantage, WEIGHTS)
    optimizer = torch.optim.Adam([policy.logits], lr=0.1)

    def draw(n, seed):
        return policy.rollout([RolloutRequest(s, n, group) for group, s in enumerate(questions(4))], seed)

    def reward():
        return scored(draw(64, 10_000)).values["total"].mean().item()

    before = reward()
    for iteration in range(30):
        rollout = draw(8, 100 * seed + iteration)
        advantages = sign * credit.advantages(scored(rollout), rollout.group_index)
        batch = MicroBatch(
            rollout, advantages, torch.ones(rollout.rows).bool(), credit.decisions(advantages, rollout.mask)
        )
        for _ in range(2):
            gradient_of(objective, policy, [batch])
            optimizer.step()
            policy.version += 1
    return before, reward()


@pytest.mark.parametrize("config", [each for each in PolicyGradientConfig.__subclasses__() if each not in OF_STEPS])
def test_preset_learns(config):
    before, after = learn(config(), seed=0)
    assert after > before + 0.3


@pytest.mark.integration
def test_flipped_advantages_unlearn():
    before, after = learn(next(iter(PolicyGradientConfig.__subclasses__()))(), seed=0, sign=-1.0)
    assert after < before - 0.1
