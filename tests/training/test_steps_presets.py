"""Presets for denoising steps, from their rewards to a policy that has learnt, and gone on with exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import (
    B2DiffuRLConfig,
    BranchGRPOConfig,
    DDPOConfig,
    DPOKConfig,
    GRPOConfig,
    GRPOGuardConfig,
    UniGRPOConfig,
)
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient, resolve_settings
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.test_trainer import lines, without_timings

ROOMY = {"clip": {"low": 0.2}}


class Branching(GaussianPolicy):
    """Rows come in fours: two and two take the first decision together, and all take the second alone."""

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        drawn = super().rollout(requests, seed)
        rows = torch.arange(drawn.rows)
        firsts = torch.stack([rows - rows % 4, rows - rows % 2, rows], dim=1)
        actions = torch.stack([drawn.recording[firsts[:, 1], 0], drawn.recording[:, 1]], dim=1)
        return replace(
            drawn,
            recording=actions,
            log_probs=self._log_probs(actions).detach(),
            media=[" ".join(f"{a:.6f}" for a in row) for row in actions.tolist()],
            mask=firsts[:, 1:] == rows[:, None],
            branches=firsts,
        )


CASES = {
    "grpo_guard": (GRPOGuardConfig(**ROOMY), GaussianPolicy),
    "ddpo": (
        DDPOConfig(advantage={"history": {"buffer": 16, "min_count": 4}, "name": "running"}, **ROOMY),
        GaussianPolicy,
    ),
    "dpok": (DPOKConfig(**ROOMY), GaussianPolicy),
    "unigrpo": (UniGRPOConfig(**ROOMY), GaussianPolicy),
    "branch_grpo": (BranchGRPOConfig(**ROOMY), Branching),
    "b2_diffurl": (B2DiffuRLConfig(**ROOMY), Branching),
    "b2_diffurl, siblings": (B2DiffuRLConfig(advantage={"name": "siblings"}, **ROOMY), Branching),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_step_presets_learn_and_resume_exactly(name, make_trainer, tmp_path):
    config, policy = CASES[name]
    settings = {"algorithm": config, "optimizer": {"lr": 0.1}}

    def train(folder: str, iterations: int, resume: bool = False):
        trainer = make_trainer(
            tmp_path / folder, policy=policy(), training={"iterations": iterations, "updates": 2, "save_every": 4},
            micro_batch=16, **settings,
        )  # fmt: skip
        if resume:
            trainer.resume()
        trainer.train()
        return trainer

    whole = train("whole", 8)
    assert (whole.policy.theta - 1.0).abs().mean() < 0.75  # it was 1
    train("cut", 4)
    resumed = train("cut", 8, resume=True)
    assert torch.equal(resumed.policy.theta, whole.policy.theta)
    assert without_timings(lines(tmp_path / "cut")) == without_timings(lines(tmp_path / "whole"))


def test_shared_decisions_learn_once_from_all_leaves(make_trainer):
    """By hand: one term for each pair that took the first decision, with the mean of their rewards."""
    policy = Branching()
    trainer = make_trainer(policy=policy, algorithm=BranchGRPOConfig(**ROOMY), group_size=8, groups=1)
    experience = trainer.iterate.__self__.source.collect(0, 0.0, _phases())
    (batch,) = experience.micro_batches
    rewards = torch.tensor([-sum((float(w) - 1.0) ** 2 for w in text.split()) for text in batch.rollout.media])
    worth = rewards.reshape(4, 2).mean(1)
    expected_first = (worth - worth.mean()) / (worth.std() + 1e-4)
    torch.testing.assert_close(batch.step_advantages[::2, 0], expected_first, atol=1e-4, rtol=1e-4)
    assert not batch.step_advantages[1::2, 0].any()
    torch.testing.assert_close(
        batch.step_advantages[:, 1], (rewards - rewards.mean()) / (rewards.std() + 1e-4), atol=1e-4, rtol=1e-4
    )
    objective = PolicyGradient(policy, BranchGRPOConfig(**ROOMY))
    objective.backward(batch, 1.0, 0, MetricAccumulator())
    score = (batch.rollout.recording - policy.theta.detach()) / policy.std**2
    expected = (
        -torch.stack([(expected_first * score[::2, 0]).sum(), (batch.step_advantages[:, 1] * score[:, 1]).sum()]) / 12
    )
    torch.testing.assert_close(policy.theta.grad, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bar", [None, 0.5])
def test_siblings_are_compared_within_their_tree(make_trainer, bar):
    """B2-DiffuRL's comparison: against the four rows of a tree, of which a group has two, and of these the extremes."""
    advantage = {"name": "siblings", "ddof": 1, "extremes_threshold": bar}
    algorithm = B2DiffuRLConfig(advantage=advantage, **ROOMY)
    trainer = make_trainer(policy=Branching(), algorithm=algorithm, group_size=8, groups=2)
    rewards, found = [], []
    for batch in trainer.iterate.__self__.source.collect(0, 0.0, _phases()).micro_batches:
        rewards += [-sum((float(w) - 1.0) ** 2 for w in text.split()) for text in batch.rollout.media]
        found.append(batch.advantages)
    trees = torch.tensor(rewards).reshape(4, 4)
    expected = (trees - trees.mean(1, keepdim=True)) / (trees.std(1, keepdim=True) + 1e-4)
    if bar is not None:
        extreme = (expected == expected.amax(1, keepdim=True)) | (expected == expected.amin(1, keepdim=True))
        expected = expected.where(extreme & (expected.abs() >= bar), 0.0)
    torch.testing.assert_close(torch.cat(found), expected.flatten(), atol=1e-4, rtol=1e-4)


def _phases():
    from mmrl.training.run.timers import Phases

    return Phases()


def test_guard_weights_steps_with_exact_gradients():
    class Gains(GaussianPolicy):
        """Two steps of unlike noise, whose means move with the velocity by 0.5 and by 0.1."""

        def replay(self, rollout, step_indices, visit):
            gains = torch.tensor([0.5, 0.1])
            super().replay(
                rollout,
                step_indices,
                lambda now: visit(replace(now, gain=gains[list(now.step_indices)].expand(rollout.rows, 1))),
            )

    policy = Gains()
    requests = [RolloutRequest(sample, 4, group, keep_means=True) for group, sample in enumerate(_samples())]
    rollout = policy.rollout(requests, seed=0)
    policy.theta.data += torch.tensor([0.05, -0.08])  # not fresh: the old means matter
    policy.version += 1
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.3, 0.2, -0.9, 0.4])
    config = GRPOGuardConfig(clip={"low": 0.5})
    objective = PolicyGradient(policy, config)
    batch = _batch(rollout, advantages)
    objective.backward(batch, 1.0, 0, MetricAccumulator())
    noise = (rollout.recording - 0.0) / policy.std  # it was drawn at theta = 0

    def loss(theta: torch.Tensor) -> torch.Tensor:
        ratio = (theta.double() * noise.double()).exp()  # e^(d e), by hand
        return -(advantages[:, None] * ratio / torch.tensor([0.5, 0.1])).mean()

    h = 1e-5
    for k in range(2):
        shift = h * torch.eye(2, dtype=torch.float64)[k]
        expected = (loss(policy.theta.detach() + shift) - loss(policy.theta.detach() - shift)) / (2 * h)
        assert policy.theta.grad[k].item() == pytest.approx(expected.item(), rel=1e-4)


def _samples():
    from tests.training.conftest import samples

    return samples(2)


def _batch(rollout, advantages):
    from mmrl.training.experience import MicroBatch

    credit = advantages[:, None].expand_as(rollout.log_probs)
    return MicroBatch(rollout, advantages, torch.ones(rollout.rows, dtype=torch.bool), credit)


def test_guard_needs_recorded_moments():
    with pytest.raises(ConfigError, match=r"algorithm\.ratio: guard normalises by the noise of denoising steps"):
        resolve_settings(GRPOGuardConfig(), frozenset({Capability.LOG_PROBS}))
    policy = GaussianPolicy()
    rollout = policy.rollout([RolloutRequest(_samples()[0], 4, 0)], seed=0)
    with pytest.raises(ValueError, match="needs rollouts that keep their means"):
        PolicyGradient(policy, GRPOGuardConfig()).backward(_batch(rollout, torch.ones(4)), 1.0, 0, MetricAccumulator())
    assert resolve_settings(GRPOConfig(), frozenset({Capability.LOG_PROBS})).guarded is False
