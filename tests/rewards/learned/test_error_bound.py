"""The bound of a reward model's error: by hand, as a property, in a folder, and as a factor on advantages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.errors import ConfigError
from mmrl.rewards import RewardError, RewardInput, load
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rewards.learned.error_bound import error_bounds, inverse_precision
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.workflows.train_reward import train_reward
from mmrl_shapeworld import bounded_runs
from tests.rewards.learned.test_train_reward import config_of, data, drawn, pair

__all__ = ["data"]


def test_the_bound_is_small_where_answers_were_rated():
    rated = torch.tensor([[3.0, 0.0, 0.0]] * 4)
    inverse = inverse_precision(rated, ridge=0.25)
    assert torch.allclose(inverse.diag(), torch.tensor([1 / 36.25, 4.0, 4.0]))
    found = error_bounds(torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]), inverse)
    assert found.tolist() == pytest.approx([3 / math.sqrt(36.25), 6.0, 0.0])
    with pytest.raises(ValueError, match="ridge is 0"):
        inverse_precision(rated, ridge=0)


def test_no_linear_model_of_bounded_size_is_further_off_than_the_bound():
    """Without noise the ridge estimate is off by at most sqrt(ridge) |theta| |phi|_{V^-1} (Cauchy and Schwarz)."""
    chance = torch.Generator().manual_seed(0)
    rated, others = (torch.randn(n, 12, generator=chance, dtype=torch.float64) for n in (8, 200))
    theta, ridge = torch.randn(12, generator=chance, dtype=torch.float64), 0.5
    inverse = inverse_precision(rated, ridge).double()
    estimate = inverse @ rated.T @ (rated @ theta)
    bound = math.sqrt(ridge) * theta.norm() * error_bounds(others, inverse)
    error = (others @ (estimate - theta)).abs()
    assert (error <= bound * (1 + 1e-4)).all() and (error > 0.3 * bound).any()
    assert (error > 0.05 * bound * rated.norm()).any()  # the control: without V^-1 it would be no bound
    more = inverse_precision(torch.cat([rated, others[:50]]), ridge).double()
    assert (error_bounds(others, more) <= error_bounds(others, inverse) + 1e-6).all()


@pytest.mark.slow
def test_a_folder_with_a_bound_gives_it_beside_the_score(data, tmp_path):
    path = data(pair(number) for number in range(12))
    done = train_reward(config_of(path, "ensemble=2", "bound={ridge: 0.1}"), tmp_path / "model")
    reward = load("learned", model=str(done.folder), device="cpu")
    seen = RewardInput(id="0", group=0, prompt="a red circle", image=drawn(180, 0))
    unseen = RewardInput(id="1", group=0, prompt="three blue squares", image=drawn(0, 5).rotate(90))
    bounds = reward.score([seen, unseen]).values["learned_bound"]
    assert 0 < bounds[0] < bounds[1]
    plain = train_reward(config_of(path, "ensemble=1"), tmp_path / "plain")
    without = load("learned", model=str(plain.folder), device="cpu")
    assert "learned_bound" not in without.score([seen]).values
    with pytest.raises(RewardError, match="has no bound: train it with the key bound set"):
        without._scores.bounds(torch.zeros(1, 192))


def scored(total, bound):
    values = {"total": np.array(total, np.float32), "learned_bound": np.array(bound, np.float32)}
    return RewardOutput(values, {}, [{} for _ in total])


def test_doubtful_answers_have_smaller_advantages():
    groups = torch.tensor([0, 0, 1, 1])
    output = scored([1.0, 0.0, 3.0, 0.0], [0.0, 1.0, 2.0, np.nan])
    plain = AdvantageEstimator(AdvantageConfig(name="grpo"), {}).advantages(output, groups)
    trust = AdvantageConfig(name="grpo", trust={"rate": 0.5, "offset": 0.1})
    found = AdvantageEstimator(trust, {}).advantages(output, groups)
    factors = [math.exp(0.1), math.exp(-0.4), math.exp(-0.9), 0.0]
    assert found.tolist() == pytest.approx((plain * torch.tensor(factors)).tolist(), abs=1e-6)
    wrong = AdvantageConfig(name="grpo", trust={"score": "other"})
    with pytest.raises(ConfigError, match="no reward gives 'other'; there are learned_bound, total"):
        AdvantageEstimator(wrong, {}).advantages(output, groups)


@pytest.mark.integration
def test_the_policy_of_the_experiment_is_a_distribution_that_follows_its_reward():
    count = [len(shares) for shares in bounded_runs.START]
    choices = torch.cartesian_prod(*(torch.arange(each) for each in count))[None]
    chances = bounded_runs.probabilities(bounded_runs.start_logits(), choices)
    assert chances.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert chances[0, 0].item() == pytest.approx(0.4 * 0.5 * 0.3 * 0.6 * 0.9)
    right = ((choices[..., 0] == 0) & (choices[..., 1] == 0)).float()
    world = bounded_runs.Fillings(torch.zeros(1, len(right[0]), 1), right, choices)
    course = bounded_runs.trained(world, right, torch.ones_like(right))
    assert course[0, 1].item() == pytest.approx(0.2, abs=1e-5) and course[-1, 1] > 0.9
    still = bounded_runs.trained(world, right, torch.zeros_like(right))
    assert still[-1, 1].item() == pytest.approx(0.2, abs=1e-5)
