"""Ascent on differentiable rewards: gradients by hand, which steps are live, what each term moves, what is refused."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.build.config_checks import check
from mmrl.config import ConfigError
from mmrl.config.algorithms.reward_gradient import (
    AlignPropConfig,
    DRaFTConfig,
    DRaFTLVConfig,
    DRTuneConfig,
    LatentReFLConfig,
    ReFLConfig,
    RewardGradientConfig,
)
from mmrl.config.loading.load import parse_config
from mmrl.data.sample import Sample
from mmrl.policy import BackpropSteps, Capability
from mmrl.rewards import Reward
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rollout import Rollout
from mmrl.seeds import fold_in
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.reward_gradient import DifferentiableReward, LatentRewardGradient, RewardGradient

ROWS, STEPS = 3, 10


class Bright(Reward):
    name, range, differentiable = "bright", (0.0, 1.0), True

    def score_one(self, item):
        return float(np.asarray(item.image).mean() / 255)

    def score_tensor(self, images, batch):
        assert [item.id for item in batch] == [f"{item.prompt}/{item.prompt}" for item in batch]
        return images.mean((1, 2, 3))


class Square(Bright):
    name = "square"

    def score_tensor(self, images, batch):
        return images.square().mean((1, 2, 3))


class SquaredLatents(LatentReward):
    name, range, noise = "squared_latents", (0.0, math.inf), (0.25, 0.75)

    def __init__(self):
        self.levels = []

    def score_batch(self, items):
        raise AssertionError("no picture is scored")

    def score_latents(self, latents, sigma, batch):
        assert [item.prompt for item in batch] == [item.id.split("/")[0] for item in batch]
        self.levels.append(sigma)
        return latents.square().mean(1)


class Flat(Reward):
    name, range = "flat", (0.0, 1.0)

    def score_one(self, item):
        return 0.0


@dataclass
class Painter:
    """Paints row b in the grey theta_b for any steps; its velocity is theta_b / 2, the reference's 0."""

    theta: Tensor = field(
        default_factory=lambda: torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    )
    capabilities = frozenset({Capability.DECODE_WITH_GRAD, Capability.PREDICT_VELOCITY})
    lived: list[BackpropSteps] = field(default_factory=list)
    frozen: bool = False

    def decode_with_grad(self, rollout: Rollout, live: BackpropSteps) -> Tensor:
        self.lived.append(live)
        return self.theta[:, None, None, None].expand(ROWS, 3, 4, 4)

    def clean_with_grad(self, rollout: Rollout, live: BackpropSteps) -> Tensor:
        self.lived.append(live)
        return self.theta[:, None].expand(ROWS, 4)

    def noise_level(self, place: float) -> float:
        return place

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        return (self.theta[:, None] / 2 * (not self.frozen)).expand(ROWS, 5)

    def reference(self):
        self.frozen = True
        return _thawing(self)

    def keep_latents(self):
        return nullcontext()


class _thawing:
    def __init__(self, painter):
        self.painter = painter

    def __enter__(self):
        pass

    def __exit__(self, *_):
        self.painter.frozen = False


def batch(scored=(True, True, True)) -> MicroBatch:
    rollout = Rollout(
        samples=[Sample(str(row), prompt=str(row)) for row in range(ROWS)],
        group_index=torch.arange(ROWS),
        log_probs=torch.zeros(ROWS, 0),
        mask=torch.zeros(ROWS, 0, dtype=torch.bool),
        channel=torch.zeros(ROWS, 0, dtype=torch.int64),
        media=[Image.new("RGB", (4, 4))] * ROWS,
        policy_version=0,
        clean=torch.zeros(ROWS, 5),
    )
    return MicroBatch(rollout, torch.zeros(ROWS), torch.tensor(scored), torch.zeros(ROWS, 0))


def learn(config: RewardGradientConfig, rewards, scored=(True, True, True), share=1.0) -> tuple[Tensor, dict[str, Any]]:
    """The gradient of theta [ROWS], and the gauges."""
    painter, gauges = Painter(), MetricAccumulator()
    objective = RewardGradient(painter, config, rewards, STEPS)
    objective.backward(batch(scored), share, 5, gauges)
    return painter.theta.grad, gauges.values()


def close(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_reward_gradient_is_the_weighted_sum_by_hand():
    rewards = [DifferentiableReward(Bright(), 2.0), DifferentiableReward(Square(), -0.5)]
    found, gauges = learn(DRaFTConfig(), rewards, share=0.25)
    close(found, [-0.25 * (2 - 0.5 * 2 * theta) / 3 for theta in (0.2, 0.5, 0.7)])
    totals = [2 * theta - 0.5 * theta**2 for theta in (0.2, 0.5, 0.7)]
    assert gauges["live_reward"] == pytest.approx(sum(totals) / 3) == -gauges["loss"]
    assert gauges["live_reward/bright"] == pytest.approx(1.4 / 3) and gauges["live_steps"] == 1


class Filmer(Painter):
    """Films row b, two frames of 4 by 4 pixels in the grey theta_b."""

    def decode_with_grad(self, rollout: Rollout, live: BackpropSteps) -> Tensor:
        self.lived.append(live)
        return self.theta[:, None, None, None, None].expand(ROWS, 2, 3, 4, 4)


class LastFrame(Square):
    name, needs = "last_frame", ("video",)

    def score_tensor(self, images, batch):
        assert images.shape[1:] == (2, 3, 4, 4)
        return images[:, -1].square().mean((1, 2, 3))


def test_rewards_of_videos_have_gradients_too_and_those_of_pictures_are_refused():
    filmer, gauges = Filmer(), MetricAccumulator()
    RewardGradient(filmer, DRaFTConfig(), [DifferentiableReward(LastFrame(), 2.0)], STEPS).backward(
        batch((True, False, True)), 1.0, 0, gauges
    )
    close(filmer.theta.grad, [-2 * 2 * 0.2 / 2, 0.0, -2 * 2 * 0.7 / 2])  # of -2 theta^2, the mean over two rows
    for policy, reward, message in (
        (Filmer(), Picture(), "picture reads image, and the policy draws video"),
        (Painter(), LastFrame(), "last_frame reads video, and the policy draws image"),
    ):
        objective = RewardGradient(policy, DRaFTConfig(), [DifferentiableReward(reward, 1.0)], STEPS)
        with pytest.raises(ConfigError, match=message):
            objective.backward(batch((True,) * 3), 1.0, 0, MetricAccumulator())


class Picture(Square):
    name, needs = "picture", ("image",)


def test_unscored_rows_have_no_gradient():
    found, _ = learn(DRaFTConfig(), [DifferentiableReward(Square(), 1.0)], scored=(True, False, True))
    close(found, [-0.2, 0.0, -0.7])
    painter = Painter()
    RewardGradient(painter, DRaFTConfig(), [], STEPS).backward(batch((False,) * 3), 1.0, 0, MetricAccumulator())
    assert painter.theta.grad is None and not painter.lived


def test_rewards_above_the_ceiling_have_no_gradient():
    found, gauges = learn(DRaFTConfig(ceiling=0.6), [DifferentiableReward(Bright(), 1.0)])
    close(found, [-1 / 3, -1 / 3, 0.0])
    assert gauges["live_reward"] == pytest.approx(1.4 / 3) and gauges["loss"] == pytest.approx(-1.3 / 3)


def test_every_term_has_a_gradient():
    nothing = DifferentiableReward(Bright(), 0.0)
    found, gauges = learn(DRaFTConfig(kl={"coef": 0.4}), [nothing], share=0.5)
    close(found, [0.5 * 0.4 * 2 * theta / 4 / 3 for theta in (0.2, 0.5, 0.7)])  # of the mean of (theta / 2)²
    assert gauges["kl"] == pytest.approx(sum(theta**2 / 4 for theta in (0.2, 0.5, 0.7)) / 3)
    for reward in (Bright(), Square()):
        found, _ = learn(DRaFTConfig(), [DifferentiableReward(reward, 1.0)])
        assert (found < 0).all()


def lived(config: RewardGradientConfig, seeds: int = 400) -> list[BackpropSteps]:
    objective = RewardGradient(Painter(), config, [], STEPS)
    return [live for seed in range(seeds) for live in objective.live_steps(seed)]


def test_backprop_steps_equal_the_papers():
    assert set(lived(DRaFTConfig())) == {BackpropSteps(1)}
    assert set(lived(DRaFTConfig(steps=4))) == {BackpropSteps(4)}
    assert set(lived(DRaFTConfig(steps=None))) == {BackpropSteps(STEPS)}
    assert set(lived(DRTuneConfig())) == {BackpropSteps(STEPS, detached=True)}
    for config, expected in (
        (AlignPropConfig(), {BackpropSteps(count) for count in range(1, STEPS + 1)}),
        (AlignPropConfig(steps=3), {BackpropSteps(count) for count in (1, 2, 3)}),
        (ReFLConfig(jump=4), {BackpropSteps(1, left) for left in range(4)}),
        (ReFLConfig(), {BackpropSteps(1, left) for left in range(STEPS)}),
    ):
        counted = Counter(lived(config))
        assert counted.keys() == expected  # all of them, none far from its share
        assert min(counted.values()) > 0.5 * 400 / len(expected)


def test_noised_copies_differ_and_share_the_loss():
    copies = lived(DRaFTLVConfig(renoised=3), seeds=1)
    assert [each.count for each in copies] == [1] * 3 and len({each.noise_seed for each in copies}) == 3
    assert copies == lived(DRaFTLVConfig(renoised=3), seeds=1) != lived(DRaFTLVConfig(renoised=3), seeds=2)[3:]
    one, _ = learn(DRaFTConfig(), [DifferentiableReward(Square(), 1.0)])
    three, _ = learn(DRaFTLVConfig(renoised=3), [DifferentiableReward(Square(), 1.0)])
    torch.testing.assert_close(one, three)


def feedback_at(levels: int, seed: int) -> tuple[Painter, list[float], float]:
    """Return a painter with its gradient, the levels that its latents were scored at, and the reward."""
    painter, gauges, gauge = Painter(), MetricAccumulator(), SquaredLatents()
    config = LatentReFLConfig(levels=levels)
    objective = LatentRewardGradient(painter, config, [DifferentiableReward(gauge, 2.0)], STEPS)
    objective.backward(batch((True, False, True)), 0.5, seed, gauges)
    return painter, gauge.levels, gauges.values()["live_reward"]


@pytest.mark.parametrize("levels", [1, 3])
def test_feedback_on_latents_is_the_gradient_of_what_reads_them_by_hand(levels):
    """Latents are noised to a level s of each part of the reward's range, the same in each row: (1 - s) theta + s e."""
    painter, found, reward = feedback_at(levels, 5)
    thetas, gradient, total = painter.theta.detach(), torch.zeros(ROWS).double(), 0.0
    for part, level in enumerate(found):
        assert 0.25 + 0.5 * part / levels <= level <= 0.25 + 0.5 * (part + 1) / levels
        noise = torch.randn(4, generator=torch.Generator().manual_seed(fold_in(5, 4, part))).double()
        x = (1 - level) * thetas[:, None].float().double() + level * noise
        gradient += -0.5 * 2.0 * 2 * x.mean(1) * (1 - level) / 2 / levels
        total += 2 * x.square().mean(1)[[0, 2]].mean().item() / levels
    gradient[1] = 0.0
    torch.testing.assert_close(painter.theta.grad, gradient, rtol=1e-5, atol=1e-8)
    assert len(found) == levels and reward == pytest.approx(total, rel=1e-5)


def test_each_update_scores_latents_at_other_levels_and_with_other_noise():
    runs = [feedback_at(2, seed) for seed in (5, 5, 6)]
    assert runs[0][1:] == runs[1][1:] and len({level for _, levels, _ in runs for level in levels}) == 4
    assert not torch.equal(runs[0][0].theta.grad, runs[2][0].theta.grad)


def test_feedback_on_latents_follows_rewards_of_latents_alone():
    painter = Painter()
    with pytest.raises(ConfigError, match="bright reads no latents, which latent_refl needs"):
        LatentRewardGradient(painter, LatentReFLConfig(), [DifferentiableReward(Bright(), 1.0)], STEPS)
    with pytest.raises(ConfigError, match=r"shapeworld_clip reads no latents, .* one of learned_latents, set its"):
        check(config("algorithm={name: latent_refl}"))
    latents = "rewards=[{name: learned_latents, args: {model: m}}]"
    check(config("algorithm={name: latent_refl}", latents))
    with pytest.raises(ConfigError, match="learned_latents has no gradient"):
        check(config(latents))


def test_rewards_without_a_gradient_raise():
    with pytest.raises(ConfigError, match="flat has no gradient, which draft needs"):
        RewardGradient(
            Painter(), DRaFTConfig(), [DifferentiableReward(Bright(), 1.0), DifferentiableReward(Flat(), 1.0)], STEPS
        )


SMALLEST = """
name: tiny
policy: {kind: pipeline, model: shapeworld}
algorithm: {name: draft}
rewards: [{name: shapeworld_clip}]
data: {path: "shapeworld:train"}
"""


def config(*changes: str):
    return parse_config(SMALLEST, "tiny.yaml", list(changes))


def test_non_differentiable_rewards_are_rejected_before_loading_a_model():
    check(config())
    check(config("rewards=[{name: shapeworld_clip}, {name: shapeworld, weight: 0}]"))
    with pytest.raises(
        ConfigError, match=r"rewards\.1\.name: shapeworld has no gradient, .* one of .*clip_score.*, set its"
    ):
        check(config("rewards=[{name: shapeworld_clip}, {name: shapeworld}]"))
    with pytest.raises(ConfigError, match=r"rewards\.0\.gate: a gate has no gradient"):
        check(config("rewards=[{name: shapeworld_clip, gate: 1.0}]"))
    with pytest.raises(ConfigError, match="RewardGradient needs decode_with_grad"):
        check(config("policy={kind: vlm, model: shapeworld}", "sampling={kind: tokens}"))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("{name: draft_lv, steps: 2}", "algorithm.renoised: noise is put on x_0 for the last step alone"),
        ("{name: refl, renoised: 2}", "algorithm.renoised"),
        ("{name: draft, recompute: true}", "algorithm.recompute: a single step has no other activations"),
        ("{name: drtune, steps: 1}", "algorithm.detach: a single step has nothing before it"),
        ("{name: alignprop, steps: 1}", "algorithm.truncation: a random number from 1 to steps, which is 1"),
        ("{name: draft, kl: {coef: 0.1, kind: k3}}", "algorithm.kl.kind: k3 compares stochastic decisions"),
    ],
)
def test_incompatible_keys_are_rejected(algorithm, message):
    made = config(f"algorithm={algorithm}")
    (line,) = made.algorithm.validation_errors(made)
    assert line.startswith(message)
