"""Imitation of demonstrations, and of the policy's own best answers."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.algorithms.answer_weights import BestOfConfig
from mmrl.config.algorithms.supervised import RejectionSFTConfig, SFTConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rollout_request import TargetText
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, check_compatible
from mmrl.training.objectives.imitation import SupervisedLearning
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.objectives.scored_batches import Counting, InParts, batch_of, cut, gradient_of, moved
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Right, source, trainer

NAN = float("nan")


def demonstrated(policy, texts=("1 2", "3", "2 2 2", "1")):
    rollout = policy.score_targets(
        [TargetText(s, text, n) for n, (s, text) in enumerate(zip(questions(4), texts, strict=True))]
    )
    ones = torch.ones(len(texts))
    return MicroBatch(rollout, ones, ones.bool(), ones[:, None].where(rollout.mask, 0.0))


@pytest.mark.parametrize(("how", "reduction"), [("token", "mean"), ("sequence", "sum")])
def test_sft_gradient_is_that_of_cross_entropy(how, reduction):
    policy = TokenPolicy()
    batch = demonstrated(policy)
    got, gauges = gradient_of(SupervisedLearning(policy, SFTConfig(aggregate=how)), policy, [batch])
    logits = policy.logits.detach().clone().requires_grad_()
    mask, written = batch.rollout.mask, batch.rollout.recording
    each = torch.nn.functional.cross_entropy(logits[written.prompts][mask], written.tokens[mask], reduction="none")
    lengths = mask.sum(1, keepdim=True).expand_as(mask)[mask]
    loss = each.mean() if how == "token" else (each / lengths).sum() / 4
    loss.backward()
    torch.testing.assert_close(got, logits.grad)
    assert gauges.values()["loss"] == pytest.approx(loss.item())
    assert gauges.values()["log_prob_mean"] == pytest.approx(-each.mean().item())
    assert gauges.values()["log_prob_change_max"] == 0 and gauges.values()["imitated_share"] == 1


def test_gradients_are_independent_of_step_order_and_micro_batches():
    for how in ("token", "sequence"):
        found = []
        for policy, at in ((TokenPolicy(), []), (TokenPolicy(), [1, 3]), (InParts(), [])):
            batches = cut(demonstrated(policy), *at)
            found.append(gradient_of(SupervisedLearning(policy, SFTConfig(aggregate=how)), policy, batches)[0])
        torch.testing.assert_close(found[1], found[0])
        torch.testing.assert_close(found[2], found[0])
        assert found[0].norm() > 0.1


def test_only_rows_with_an_advantage_are_computed():
    credit = [1.0, 0.0, NAN, 0.0, 0.0, 1.0, 0.0, 0.0]
    cutting, whole = Counting(), Counting(TokenPolicy.capabilities - {Capability.SELECT_ROWS})
    found = []
    for policy in (cutting, whole):
        learner = SupervisedLearning(policy, RejectionSFTConfig())
        batch = batch_of(policy, credit)
        assert learner.loss_normalizer(batch) == batch.rollout.mask[[0, 5]].sum()
        found.append(gradient_of(learner, moved(policy), [batch]))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert cutting.replayed == [2] and whole.replayed == [8]
    assert found[0][1].values()["imitated_share"] == 0.25 and "log_prob_change_max" not in found[0][1].values()
    none, gauges = gradient_of_nothing(TokenPolicy())
    assert not none.any() and gauges.values() == {"imitated_share": 0}


def gradient_of_nothing(policy):
    learner, batch = SupervisedLearning(policy, RejectionSFTConfig()), batch_of(policy, [0.0] * 4)
    assert learner.loss_normalizer(batch) == 0
    gauges = MetricAccumulator()
    learner.backward(batch, 0.0, 0, gauges)
    return torch.zeros(1) if policy.logits.grad is None else policy.logits.grad, gauges


def test_advantages_weigh_the_loss():
    policy = TokenPolicy()
    batch = demonstrated(policy)
    learner = SupervisedLearning(policy, SFTConfig())
    whole, _ = gradient_of(learner, policy, [batch])
    batch.step_advantages.mul_(0.25)
    quarter, _ = gradient_of(learner, policy, [batch])
    torch.testing.assert_close(quarter, whole / 4)


def test_negative_advantages_raise():
    policy = TokenPolicy()
    with pytest.raises(ValueError, match="imitation takes advantages >= 0, and some are negative"):
        SupervisedLearning(policy, SFTConfig()).loss_normalizer(batch_of(policy, [1.0, -1.0, 0.0, 0.0]))


def test_demonstrations_need_a_teacher_forcing_policy():
    check_compatible(SupervisedLearning, TokenPolicy, SFTConfig.experience)
    check_compatible(SupervisedLearning, GaussianPolicy, RejectionSFTConfig.experience)
    with pytest.raises(ConfigError, match="GaussianPolicy cannot learn from demonstrations: it lacks"):
        check_compatible(SupervisedLearning, GaussianPolicy, SFTConfig.experience)


@pytest.mark.parametrize("at_least", [None, 1.0])
def test_rejection_sampling_learns(tmp_path, at_least):
    policy = TokenPolicy()
    best = BestOfConfig(keep=1, min_value=at_least)
    drawn = source(policy, Right(), advantage_estimator=AdvantageEstimator(best, {"right": 1.0}))
    learner = SupervisedLearning(policy, RejectionSFTConfig(advantage=best))
    run = trainer(tmp_path, drawn, objective=learner, lr=0.3, training={"iterations": 30, "save_every": 30})
    rewards = [run.iterate()[0]["reward/total"] for _ in range(30)]
    assert sum(rewards[-6:]) / 6 > sum(rewards[:6]) / 6 + 0.2, rewards
