"""Distillation on the policy's own answers: closed forms, trl's full divergence, gates."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.kl import kl_k1_loss
from mmrl.config.algorithms.distill import DistillConfig, GateConfig
from mmrl.data.sample import Sample
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.distillation import Distillation, passes
from tests.training.token_policy import TokenPolicy, questions

WORDS = 5


def distillation(policy: TokenPolicy, teacher: TokenPolicy, **settings) -> Distillation:
    return Distillation(policy, DistillConfig(teacher="teacher", **settings), NamedModel(teacher))


def batch_of(rollout, totals: Tensor | None = None) -> MicroBatch:
    return replace(MicroBatch.of_rows(rollout, torch.zeros(rollout.rows)), totals=totals)


def expected_gradient(policy: TokenPolicy, teacher: TokenPolicy, estimator: str, away: bool = False) -> Tensor:
    """The gradient of the estimator, in the mean over the answers of one token that the policy may give."""
    objective = distillation(policy, teacher, estimator=estimator, away=away)
    for token, probability in enumerate(policy.logits[0, 0].detach().softmax(-1).tolist()):
        rollout = policy.score_targets([TargetText(Sample("s0", "?"), "", 0, token_ids=(token,))])
        objective.backward(batch_of(rollout), probability, 0, MetricAccumulator())
    assert policy.logits.grad is not None
    return policy.logits.grad[0, 0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "weighted_k3"])
def test_expected_gradient_is_that_of_the_divergence_from_the_teacher(estimator):
    policy = TokenPolicy(prompts=1, length=1, vocabulary=WORDS)
    teacher = TokenPolicy(prompts=1, length=1, vocabulary=WORDS, spread=1.5, seed=9)
    p, q = policy.logits.detach()[0, 0].softmax(-1), teacher.logits.detach()[0, 0].softmax(-1)
    ratio = (p / q).log()
    by_hand = p * (ratio - (p * ratio).sum())  # d KL(p || q) / d logits
    torch.testing.assert_close(expected_gradient(policy, teacher, estimator), by_hand, atol=1e-6, rtol=0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "weighted_k3"])
def test_a_policy_leaves_a_model_by_the_negative_gradient_of_its_distillation(estimator):
    policy = TokenPolicy(prompts=1, length=1, vocabulary=WORDS)
    biased = TokenPolicy(prompts=1, length=1, vocabulary=WORDS, spread=1.5, seed=9)
    p, q = policy.logits.detach()[0, 0].softmax(-1), biased.logits.detach()[0, 0].softmax(-1)
    ratio = (p / q).log()
    by_hand = q - p if estimator == "k3" else -p * (ratio - (p * ratio).sum())  # -d KL(q || p), -d KL(p || q)
    found = expected_gradient(policy, biased, estimator, away=True)
    torch.testing.assert_close(found, by_hand, atol=1e-6, rtol=0)
    with torch.no_grad():
        moved = (policy.logits[0, 0] - 0.01 * found).softmax(-1)
    kl = (q * (q / moved).log()).sum() if estimator == "k3" else (moved * (moved / q).log()).sum()
    before = (q * (q / p).log()).sum() if estimator == "k3" else (p * ratio).sum()
    assert kl > before  # a step of descent goes away from the model


def test_k3_follows_the_other_divergence():
    policy = TokenPolicy(prompts=1, length=1, vocabulary=WORDS)
    teacher = TokenPolicy(prompts=1, length=1, vocabulary=WORDS, spread=1.5, seed=9)
    p, q = policy.logits.detach()[0, 0].softmax(-1), teacher.logits.detach()[0, 0].softmax(-1)
    torch.testing.assert_close(expected_gradient(policy, teacher, "k3"), p - q, atol=1e-6, rtol=0)


def test_expected_gradient_equals_that_of_the_whole_divergence_of_trl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gkd import GKDTrainer
    policy = TokenPolicy(prompts=1, length=1, vocabulary=WORDS)
    teacher = TokenPolicy(prompts=1, length=1, vocabulary=WORDS, spread=1.5, seed=9)
    ours = expected_gradient(policy, teacher, "k2")
    logits = policy.logits.detach().clone().requires_grad_()
    GKDTrainer.generalized_jsd_loss(logits, teacher.logits.detach(), beta=1.0).backward()
    torch.testing.assert_close(ours, logits.grad[0, 0], atol=1e-6, rtol=0)


def test_no_gradient_where_policy_and_teacher_agree_and_unpadded_tokens_alone_count():
    policy, teacher = TokenPolicy(), TokenPolicy()
    rollout = policy.rollout([RolloutRequest(each, 3, n) for n, each in enumerate(questions())], seed=0)
    metrics = MetricAccumulator()
    objective = distillation(policy, teacher)
    assert objective.loss_normalizer(batch_of(rollout)) == int(rollout.mask.sum())
    objective.backward(batch_of(rollout), 1.0, 0, metrics)
    assert policy.logits.grad is None or not policy.logits.grad.any()
    assert metrics.values()["reverse_kl"] == 0 and metrics.values()["loss"] == 0


def test_equal_answers_are_computed_once_with_the_same_gradient():
    policy, teacher = TokenPolicy(), TokenPolicy(seed=4)
    rollout = policy.rollout([RolloutRequest(each, 30, n) for n, each in enumerate(questions()[:2])], seed=0)
    objective = distillation(policy, teacher)
    objective.backward(batch_of(rollout), 1.0, 0, MetricAccumulator())
    merged = policy.logits.grad.clone()
    policy.logits.grad = None
    objective.backward(batch_of(replace(rollout, token_ids=None)), 1.0, 0, MetricAccumulator())
    torch.testing.assert_close(merged, policy.logits.grad, atol=1e-6, rtol=0)


def test_a_gate_leaves_rows_out_and_keeps_the_mean_over_all():
    policy, teacher = TokenPolicy(), TokenPolicy(seed=4)
    rollout = policy.rollout([RolloutRequest(questions()[0], 2, 0), RolloutRequest(questions()[1], 2, 1)], seed=0)
    totals = torch.tensor([1.0, 1.0, 0.0, math.nan])
    metrics = MetricAccumulator()
    gated = distillation(policy, teacher, gate=GateConfig(at_least=1.0))
    gated.backward(batch_of(rollout, totals), 1.0, 0, metrics)
    grad = policy.logits.grad.clone()
    assert grad[0].any() and not grad[1:].any() and metrics.values()["gated_share"] == 0.5
    policy.logits.grad = None
    distillation(policy, teacher).backward(batch_of(rollout, totals), 1.0, 0, MetricAccumulator())
    torch.testing.assert_close(policy.logits.grad[0], grad[0], atol=1e-7, rtol=0)
    assert policy.logits.grad[1].any()


def test_gates_are_bounds_on_totals_that_are_known():
    policy = TokenPolicy()
    rollout = policy.rollout([RolloutRequest(questions()[0], 4, 0)], seed=0)
    batch = batch_of(rollout, torch.tensor([0.0, 0.5, 1.0, math.nan]))
    assert passes(GateConfig(below=0.5), batch).tolist() == [True, False, False, False]
    assert passes(GateConfig(at_least=0.5, below=1.0), batch).tolist() == [False, True, False, False]
    assert passes(None, batch).all()
    with pytest.raises(ValueError, match="were scored"):
        passes(GateConfig(below=1.0), batch_of(rollout))
    with pytest.raises(ValueError, match="at_least under below"):
        GateConfig(at_least=1.0, below=0.5)


def test_the_loss_of_k1_is_the_cost_at_sampling_time_weighed_by_the_ratio():
    now, old, teacher = (torch.tensor([[each]]).log() for each in (0.6, 0.5, 0.2))
    cost = kl_k1_loss(now, old, teacher, torch.ones(1, 1, dtype=torch.bool))
    assert cost.item() == pytest.approx(0.6 / 0.5 * math.log(0.5 / 0.2))
