"""Offline, then online: one run, two ways of learning."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.forward_process import DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.preference import MPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.config.training import OptimizerConfig
from mmrl.data.prompts import PromptSampler
from mmrl.policy import Capability
from mmrl.training.learner import Learner
from mmrl.training.objectives.imitation import SupervisedLearning
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.offline import Demonstrations, PreferencePairs
from mmrl.training.rollouts.stages import Stage, StagedObjective, StagedSource
from mmrl.training.run.timers import Phases
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


@pytest.mark.integration
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


def test_a_stage_that_recurs_goes_on_where_it_was_left(tmp_path):
    policy = TokenPolicy()
    one, two = (
        Stage(source(policy, Exact()), PolicyGradient(policy, GRPOConfig()), iterations) for iterations in (2, 1)
    )
    stages = StagedSource([one, two, one, two, Stage(source(policy), PolicyGradient(policy, GRPOConfig()))])
    assert [stages.place(iteration) for iteration in range(8)] == [
        (0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1),
    ]  # fmt: skip
    assert stages.stages[:2] == [one, two] and len(stages.stages) == 3
    drawn = []
    for iteration in range(6):
        batches = stages.collect(iteration, 0.0, Phases()).micro_batches
        drawn.append({sample.id for batch in batches for sample in batch.rollout.samples})
    assert drawn[0] | drawn[1] == drawn[0] ^ drawn[1] and drawn[2] ^ drawn[5] == drawn[2] | drawn[5]  # whole epochs
    assert set(stages.state_dict()) == {"0", "1", "2"}


def test_an_old_policy_of_a_later_stage_begins_as_the_policy_is_then():
    policy = GaussianFlow()
    objective = VelocityRegression(policy, DiffusionNFTConfig())
    with torch.no_grad():
        next(iter(policy.parameters_to_train().values())).add_(1.0)
    now = {name: parameter.detach().clone() for name, parameter in policy.parameters_to_train().items()}
    assert any(not torch.equal(now[name], old) for name, old in objective.state_dict().items())
    objective.begin()
    assert all(torch.equal(now[name], old) for name, old in objective.state_dict().items())


def test_the_current_stage_decides_what_is_needed_and_trained():
    policy = TokenPolicy()
    first = Stage(source(policy), PolicyGradient(policy, GRPOConfig()), 1)
    second = Stage(source(policy), VelocityRegression(GaussianFlow(), DiffusionNFTConfig()), model="painter")
    stages = StagedSource([first, second])
    objective = StagedObjective(stages)
    assert Capability.LOG_PROBS in objective.needs and objective.trained == ("policy",)
    stages.now = second
    assert objective.needs == {Capability.PREDICT_VELOCITY} and objective.trained == ("painter",)


def test_stages_without_an_end_raise():
    policy = TokenPolicy()
    online = source(policy)
    forever = Stage(online, PolicyGradient(policy, GRPOConfig()))
    with pytest.raises(ValueError, match="a number of iterations for each but the last"):
        StagedSource([forever, forever])
    with pytest.raises(ValueError, match="need at least one"):
        StagedSource([])


def test_what_a_stage_begins_with_comes_before_each_of_its_turns():
    policy, begun = TokenPolicy(), []
    prompts = PromptSampler(paired_samples(), 8, seed=0)
    taught = Demonstrations(policy, prompts, 4, seed=0)
    objective = SupervisedLearning(policy, SFTConfig())
    first = Stage(taught, objective, 2, begin=lambda: begun.append("first"))
    second = Stage(taught, objective, 1)
    stages = StagedSource([first, second, first, Stage(taught, objective, begin=lambda: begun.append("last"))])
    seen = []
    for iteration in range(8):
        stages.collect(iteration, 0.0, Phases())
        seen.append(len(begun))
    assert seen == [1, 1, 1, 2, 2, 3, 3, 3] and begun == ["first", "first", "last"]


def test_a_stage_has_a_factor_on_the_learning_rate(tmp_path):
    """A first step of AdamW is as long as its rate for any gradient."""
    moved = {}
    for scale in (1.0, 0.1):
        policy = TokenPolicy()
        before = policy.logits.detach().clone()
        online = source(policy, Exact(), prompts=PromptSampler(paired_samples(), 4, seed=0))
        objective = PolicyGradient(policy, GRPOConfig())
        stages = StagedSource([Stage(online, objective, 1, lr_scale=scale), Stage(online, objective)])
        run = trainer(tmp_path / str(scale), online, objective=StagedObjective(stages), lr=0.3)
        run.source = stages
        rates = [run.iterate()[0]["learning_rate"]]
        moved[scale] = (policy.logits - before).abs().max().item()
        rates.append(run.iterate()[0]["learning_rate"])
        assert rates == pytest.approx([0.3 * scale, 0.3])
    assert moved[0.1] == pytest.approx(0.1 * moved[1.0], rel=1e-3)


def test_an_objective_counts_the_updates_of_the_model_that_its_stage_trains(tmp_path):
    """The decay of a painter's old policy grows with the updates of the painter, and not with those of the policy."""
    policy, painter = TokenPolicy(), TokenPolicy(seed=1)
    counted = []

    class Counting(PolicyGradient):
        def finish_iteration(self, updates: int) -> None:
            counted.append(updates)

    online = source(policy)
    first = Stage(online, Counting(policy, GRPOConfig()), 3)
    second = Stage(source(painter), Counting(painter, GRPOConfig()), model="painter")
    stages = StagedSource([first, second])
    others = {"painter": Learner(painter, OptimizerConfig(lr=0.1), "float32")}
    run = trainer(tmp_path / "run", online, objective=StagedObjective(stages), others=others)
    run.source = stages
    for _ in range(5):
        run.iterate()
    assert counted == [1, 2, 3, 1, 2]
