"""Steering by rewards, and keeping the best of several."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.generation import DDIM, ODE
from mmrl.generation.diffusion.noise_levels import add_noise, signal_of
from mmrl.generation.diffusion.scheduler_families import FlowFamily, VPFamily
from mmrl.generation.inference import guided_rollout, rank, reward_guidance, steering_gain
from mmrl.rewards import Reward, RewardError, RewardSuite
from mmrl.rollout_request import RolloutRequest

ONE = {"transition": {"name": "ode"}, "steps": 3, "guidance_scale": 1.0}


class Channel(Reward):
    """A reward for the amount of one colour."""

    range, differentiable = (0.0, 1.0), True
    needs = ("image",)
    channel: int

    def score_one(self, item):
        return float(np.asarray(item.image)[..., self.channel].mean() / 255)

    def score_tensor(self, images, batch):
        return images[:, self.channel].mean((1, 2))


class Red(Channel):
    name, channel = "red", 0


class Blue(Channel):
    name, channel = "blue", 2


class Paleness(Red):
    name, direction = "paleness", "lower"


class ConstantReward(Reward):
    name, range = "flat", (0.0, 1.0)

    def score_one(self, item):
        return 0.5


@pytest.mark.parametrize(("family", "step"), [(FlowFamily(), ODE()), (VPFamily(), DDIM())])
def test_guidance_samples_the_tilted_density(family, step):
    """Data N(0, s²) and a reward a x: the tilted density p(x) exp(w a x) is N(w a s², s²), and a linear reward of the
    predicted x_0 has exactly the gradient of the tilted score. The denoiser is the closed form."""
    spread, slope, weight = 0.6, 1.5, 0.8
    levels = torch.linspace(0.999, 0, 2001, dtype=torch.float64).tolist()
    torch.manual_seed(0)
    clean, noise = (torch.randn(4000, dtype=torch.float64) for _ in range(2))
    x = add_noise(family, spread * clean, noise, levels[0])
    for pair in pairwise(levels):
        sigma = pair[0]
        signal = signal_of(family, sigma)
        shrink = spread**2 * signal / (signal**2 * spread**2 + sigma**2)  # E[x_0 | x] = shrink x
        predicted = (x - signal * shrink * x) / sigma  # the noise in x
        answer = predicted - shrink * x if isinstance(family, FlowFamily) else predicted
        mean, _ = step.moments(x, answer, *pair)
        gain = steering_gain(SimpleNamespace(family=family, levels=[pair], index=0))
        x = mean + gain * weight * slope * shrink
    assert x.mean().item() == pytest.approx(weight * slope * spread**2, abs=0.04)
    assert x.std().item() == pytest.approx(spread, abs=0.03)


@pytest.mark.integration
def test_guidance_weights_separate_two_objectives(make_policy, requests):
    """The more a colour weighs, the more of it there is; the weight of the other is its own."""
    policy = make_policy("sd3", **ONE)
    red, blue = Red(), Blue()

    def colours(*rewards):
        made = [np.asarray(image) / 255 for image in guided_rollout(policy, requests, 3, rewards).media]
        return np.array([[image[..., 0].mean(), image[..., 2].mean()] for image in made])

    w = 1000.0
    plain, one, other = colours((red, 0.0)), colours((red, w), (blue, 0.0)), colours((red, 0.0), (blue, w))
    assert (one[:, 0] > plain[:, 0]).all() and (other[:, 1] > plain[:, 1]).all()
    against = colours((red, w), (blue, -w))  # of opposite sign, further still
    apart, redder, bluer, drawn = (each[:, 0] - each[:, 1] for each in (against, one, other, plain))
    assert (redder > bluer).all() and (apart > redder).all() and (apart > drawn).all()


def test_zero_weight_is_no_guidance_and_rows_are_independent(make_policy, requests):
    policy = make_policy("sd3", **ONE)
    plain = policy.rollout(requests, seed=3)
    still = guided_rollout(policy, requests, 3, [(Red(), 0.0)])
    assert [np.asarray(a).tobytes() for a in still.media] == [np.asarray(a).tobytes() for a in plain.media]
    assert torch.allclose(still.clean, plain.clean, atol=1e-6)
    steered = guided_rollout(policy, requests, 3, [(Paleness(), 3000.0)])  # lower is better, so there is less red
    red = [np.asarray(image)[..., 0].mean() for image in (*plain.media, *steered.media)]
    assert all(after < before for before, after in zip(red[:3], red[3:], strict=True))


def test_a_policy_under_reward_guidance_draws_guided_pictures_in_evaluations_too(make_policy, requests):
    policy = make_policy("sd3", **ONE)
    plain, expected = policy.rollout(requests, 3), guided_rollout(policy, requests, 3, [(Red(), 1000.0)])
    with reward_guidance(policy, [(Red(), 1000.0)]), torch.no_grad():
        found = policy.rollout(requests, 3)
    assert [np.asarray(a).tobytes() for a in found.media] == [np.asarray(a).tobytes() for a in expected.media]
    again = policy.rollout(requests, 3)
    assert [np.asarray(a).tobytes() for a in again.media] == [np.asarray(a).tobytes() for a in plain.media]


def test_rewards_without_a_gradient_raise_by_name(make_policy, requests):
    with pytest.raises(RewardError, match="flat has no gradient"):
        guided_rollout(make_policy("sd3", **ONE), requests, 3, [(Red(), 1.0), (ConstantReward(), 1.0)])


def test_best_of_group_sorts_failures_last(make_policy):
    policy = make_policy("sd3", **ONE)
    samples = [Sample("0", prompt="a red circle"), Sample("1", prompt="a big blue square")]
    rollout = policy.rollout([RolloutRequest(s, 3, group) for group, s in enumerate(samples)], seed=3)
    media = [*rollout.media[:4], None, rollout.media[5]]

    class Picky(Red):
        name, needs = "picky", ()

        def score_one(self, item):
            return math.nan if item.image is media[1] else super().score_one(item)

    with_all = [image if image is not None else media[0] for image in media]
    suite = RewardSuite([(Picky(), 2.0), (Blue(), 0.0)], min_valid_share=0.5)
    ranking = rank(rollout.samples, with_all, rollout.group_index.tolist(), suite)
    suite.close()
    red = [np.asarray(image)[..., 0].mean() / 255 for image in with_all]
    assert ranking.order[0][-1] == 1 and sorted(ranking.order[0]) == [0, 1, 2]
    for members in ranking.order:
        known = [red[row] for row in members if row != 1]
        assert known == sorted(known, reverse=True)
    assert math.isnan(ranking.scores[1]["total"])
    assert ranking.scores[0]["total"] == pytest.approx(2 * red[0], abs=1e-6)
    assert list(ranking.scores[0]) == ["picky", "blue", "total"]
