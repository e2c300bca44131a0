"""DiffusionNFT on a flow whose velocity is known in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import KLConfig
from mmrl.config.algorithms.forward_process import DiffusionNFTConfig, OldPolicyConfig
from mmrl.data.prompts import PromptSampler
from mmrl.errors import ConfigError
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.objectives.base import MetricAccumulator, check_compatible
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.run.timers import Phases
from tests.training.conftest import TARGET, Nearness, samples
from tests.training.gaussian_flow import GaussianFlow


def source_of(policy, objective, reward=None, group_size=32):
    suite = RewardSuite([(reward or Nearness(), 1.0)], min_valid_share=0.5)
    return OnlineRollouts(
        policy=policy,
        sampling_weights=objective.sampling_weights,
        prompts=PromptSampler(samples(), 2, seed=0),
        suite=suite,
        advantage_estimator=AdvantageEstimator(AdvantageConfig(clip=5.0), suite.weights),
        group_size=group_size,
        micro_batch=2 * group_size,
        seed=0,
    )


def run(iterations: int = 60, lr: float = 0.03, reward=None, **config):
    policy = GaussianFlow()
    objective = VelocityRegression(policy, DiffusionNFTConfig(advantage=AdvantageConfig(clip=5.0), **config))
    source = source_of(policy, objective, reward)
    optimizer = torch.optim.Adam(policy.parameters_to_train().values(), lr=lr)
    gauges = MetricAccumulator()
    for step in range(iterations):
        (batch,) = source.collect(step, 0.0, Phases()).micro_batches
        optimizer.zero_grad()
        objective.backward(batch, 1.0, seed=step, metrics=gauges)
        optimizer.step()
        objective.finish_iteration(step + 1)
    return policy, objective, gauges


@pytest.mark.integration
def test_training_moves_the_flow_to_the_target():
    policy, _, _ = run()
    assert policy.mean.item() == pytest.approx(TARGET, abs=0.25)


def test_flipped_rewards_move_the_flow_away():
    class Farness(Nearness):
        name, range = "farness", (0.0, 100.0)

        def score_one(self, item):
            return -super().score_one(item)

    policy, _, _ = run(iterations=20, reward=Farness())
    assert policy.mean.item() < -0.1


@pytest.mark.integration
def test_penalty_limits_the_distance():
    free, _, _ = run(iterations=30)
    regularised, _, gauges = run(iterations=30, kl=KLConfig(kind="velocity_mse", coef=20.0))
    assert abs(regularised.mean.item()) < 0.6 * abs(free.mean.item())
    assert gauges.values()["kl"] > 0


def test_rollouts_use_the_old_policy_which_follows():
    policy, objective, _ = run(iterations=10, old=OldPolicyConfig(flat=0, rate=0.05, cap=0.9))
    old = objective.state_dict()["mean"].item()
    live = policy.mean.item()
    assert 0 < old < live
    with objective.sampling_weights():
        assert policy.mean.item() == pytest.approx(old)
    assert policy.mean.item() == pytest.approx(live)


def test_unscored_rows_have_no_gradient():
    """The advantage of a row that is marked as unscored is ignored."""
    policy = GaussianFlow()
    objective = VelocityRegression(policy, DiffusionNFTConfig(num_noise_levels=1))
    (batch,) = source_of(policy, objective, group_size=4).collect(0, 0.0, Phases()).micro_batches
    scored = torch.ones(8, dtype=torch.bool)
    scored[3] = False
    wild = batch.advantages.clone()
    wild[3] = 5.0
    gradients = []
    for advantages in (batch.advantages, wild):
        policy.mean.grad = None
        objective.backward(
            replace(batch, advantages=advantages, scored=scored), 1.0, seed=7, metrics=MetricAccumulator()
        )
        gradients.append(policy.mean.grad.clone())
    assert torch.equal(*gradients) and gradients[0].abs() > 0


def test_incompatible_settings_raise_by_name():
    with pytest.raises(ConfigError, match="PolicyGradient needs log_probs, which GaussianFlow does not have"):
        check_compatible(PolicyGradient, GaussianFlow)
    check_compatible(VelocityRegression, GaussianFlow)
