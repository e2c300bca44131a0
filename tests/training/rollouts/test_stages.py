"""Offline, then online: one run, two ways of learning."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.forward_process import DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.preference import MPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.data.prompts import PromptSampler
from mmrl.training.objectives.imitation import SupervisedLearning
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.offline import Demonstrations, PreferencePairs
from mmrl.training.rollouts.stages import Stage, StagedObjective, StagedSource
from tests.training.gaussian_flow import GaussianFlow
from tests.training.rollouts.test_offline import paired_samples
from tests.training.test_trainer import lines
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Exact, source, trainer


def staged(run, pairs=False):
    """Three iterations offline, then online to the end."""
    policy = TokenPolicy()
    prompts = PromptSampler(paired_samples(), 8, seed=0)
    if pairs:
        first = Stage(PreferencePairs(policy, prompts, 4), PreferenceLearning(policy, MPOConfig()), 3)
    else:
        first = Stage(Demonstrations(policy, prompts, 4, seed=0), SupervisedLearning(policy, SFTConfig()), 3)
    online = source(policy, Exact(), prompts=PromptSampler(paired_samples(), 4, seed=0))
    stages = StagedSource([first, Stage(online, PolicyGradient(policy, GRPOConfig()))])
    return trainer(run, online, objective=StagedObjective(stages), lr=0.3), stages


@pytest.mark.parametrize("pairs", [False, True])
def test_stages_are_logged_and_resume_exactly(tmp_path, pairs):
    straight, stages = staged(tmp_path / "a", pairs)
    straight.source = stages
    straight.train()
    rows = lines(tmp_path / "a")
    assert [row["stage"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert ["reward/exact" in row for row in rows] == [False] * 3 + [True] * 3
    for stop in (2, 4):
        begun, stages = staged(tmp_path / f"b{stop}", pairs)
        begun.source = stages
        for _ in range(stop):
            begun.iterate()
        begun.save()
        resumed, stages = staged(tmp_path / f"b{stop}", pairs)
        resumed.source = stages
        resumed.resume()
        while resumed.step < 6:
            resumed.iterate()
        assert torch.equal(resumed.policy.logits, straight.policy.logits)


def test_warm_up_on_demonstrations_helps_reinforcement(tmp_path):
    warm, stages = staged(tmp_path / "warm")
    warm.source = stages
    cold = trainer(
        tmp_path / "cold", source(TokenPolicy(), Exact(), prompts=PromptSampler(paired_samples(), 4, seed=0)), lr=0.3
    )
    found = []
    for run in (warm, cold):
        for _ in range(6):
            metrics, _ = run.iterate()
        found.append(metrics["reward/exact"])
    assert found[0] > found[1] + 0.1


def test_stages_without_an_end_or_log_probabilities_raise():
    policy = TokenPolicy()
    online = source(policy)
    forever = Stage(online, PolicyGradient(policy, GRPOConfig()))
    with pytest.raises(ValueError, match="a number of iterations for each but the last"):
        StagedSource([forever, forever])
    with pytest.raises(ValueError, match="need at least one"):
        StagedSource([])
    flow = VelocityRegression(GaussianFlow(), DiffusionNFTConfig())
    with pytest.raises(ValueError, match="one on log-probabilities"):
        StagedObjective(StagedSource([Stage(online, flow)]))
