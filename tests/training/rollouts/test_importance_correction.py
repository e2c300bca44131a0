"""Rollouts by an engine that draws from another distribution than the one that is trained."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mmrl.algorithms.importance import engine_weights
from mmrl.build.training_setup import build_training_setup
from mmrl.config.algorithms.policy_gradient import GRPOConfig, MismatchConfig
from mmrl.config.loading.load import parse_config
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.config.validation import validation_errors
from mmrl.data.prompts import PromptSampler
from mmrl.errors import RunError
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.importance_correction import (
    CorrectedRollouts,
    ImportanceCorrection,
    build_importance_correction,
)
from tests.training.rollouts.test_offline import paired_samples
from tests.training.test_actor_critic import TableCritic
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Right, collect, source

TOKENS = TokenSamplingConfig()


class Elsewhere(TokenPolicy):
    """Its rollouts come from logits that are off by a little, as an engine's of another precision are."""

    def rollout(self, requests, seed):
        live = self.logits.data
        self.logits.data = live + 0.6 * torch.randn(live.shape, generator=torch.Generator().manual_seed(7))
        try:
            return super().rollout(requests, seed)
        finally:
            self.logits.data = live


def corrected(cap: float = 2.0, policy: TokenPolicy | None = None):
    policy = policy or Elsewhere()
    return policy, CorrectedRollouts(source(policy), ImportanceCorrection(policy, cap))


def test_ratios_start_at_trainer_probabilities_with_truncated_weights():
    policy, origin = corrected(cap=1.2)
    plain = collect(source(Elsewhere()))
    experience = collect(origin)
    for mine, theirs in zip(experience.micro_batches, plain.micro_batches, strict=True):
        own = replayed_log_probs(policy, mine.rollout, range(mine.rollout.log_probs.shape[1]))
        mask = mine.rollout.mask
        torch.testing.assert_close(mine.rollout.log_probs[mask], own[mask])
        expected = (own.double() - theirs.rollout.log_probs.double()).exp().clamp(max=1.2)
        assert (expected[mask] == 1.2).any() and (expected[mask] < 1.2).any()
        torch.testing.assert_close(
            mine.step_advantages[mask].double(), (theirs.step_advantages * expected)[mask], rtol=1e-5, atol=1e-7
        )
        assert policy.replay_gap(mine.rollout) < 1e-6 < policy.replay_gap(theirs.rollout)
    assert 0 < experience.metrics["mismatch/truncated"] < 1
    assert experience.metrics["mismatch/gap"] > experience.metrics["mismatch/mean_gap"] > 0.1


def test_corrected_gradient_is_unbiased():
    """A bandit whose answers are enumerated: engine samples with weights give the gradient of the true objective."""
    torch.manual_seed(0)
    policy = TokenPolicy(prompts=1, length=1)
    engine = (policy.logits + torch.tensor([0.8, -0.5, 0.3, -0.2])).detach().softmax(-1)[0, 0]
    rewards = torch.tensor([0.0, 1.0, 0.3, 0.7])
    own = policy.logits.softmax(-1)[0, 0]
    (expected,) = torch.autograd.grad((own * rewards).sum(), policy.logits, retain_graph=True)
    weighted = (engine * (own.detach() / engine) * rewards * own.log()).sum()
    plain = (engine * rewards * own.log()).sum()
    torch.testing.assert_close(torch.autograd.grad(weighted, policy.logits, retain_graph=True)[0], expected)
    assert (torch.autograd.grad(plain, policy.logits)[0] - expected).abs().max() > 0.01


def test_equal_engine_and_trainer_change_nothing():
    _, origin = corrected(policy=TokenPolicy())
    mine, theirs = collect(origin), collect(source(TokenPolicy()))
    for one, other in zip(mine.micro_batches, theirs.micro_batches, strict=True):
        torch.testing.assert_close(one.step_advantages, other.step_advantages)
    assert mine.metrics["mismatch/weight"] == pytest.approx(1.0, abs=1e-6)
    assert mine.metrics["mismatch/truncated"] == 0


def test_updates_use_corrected_rollouts():
    policy, origin = corrected()
    batch = collect(origin).micro_batches[0]
    PolicyGradient(policy, GRPOConfig()).backward(batch, 1.0, 0, gauges := MetricAccumulator())
    assert policy.logits.grad.abs().max() > 0
    assert gauges.values()["ratio_max"] == pytest.approx(1.0, abs=1e-6)
    unweighted = replace(batch, step_advantages=batch.advantages[:, None].expand_as(batch.step_advantages))
    first, policy.logits.grad = policy.logits.grad, None
    PolicyGradient(policy, GRPOConfig()).backward(unweighted, 1.0, 0, MetricAccumulator())
    assert (policy.logits.grad - first).abs().max() > 1e-4


def test_replayed_answers_are_refused():
    mixed = {"name": "grpo", "mismatch": {"cap": 2.0}}
    data = {"path": "x.jsonl", "groups": 2, "group_size": 2, "replay": {"name": "selective"}}
    config = TrainConfig(name="x", policy={"kind": "vlm", "model": "x"}, sampling=TOKENS, algorithm=mixed, data=data)
    (found,) = validation_errors(config)
    assert found.startswith("algorithm.mismatch: answers that data.replay keeps")


def test_demonstrations_are_not_corrected():
    policy = TokenPolicy()
    prompts = PromptSampler(paired_samples(), 4, seed=0)
    mixed = source(policy, prompts=prompts, demonstrations=MixedDemonstrations(1.0, None, 0))
    batches = collect(CorrectedRollouts(mixed, ImportanceCorrection(policy, 2.0))).micro_batches
    assert {batch.sampled for batch in batches} == {True, False}


@pytest.mark.parametrize("algorithm", ["ppo, critic: judge", "oreal, critic: judge", "oreal"])
def test_advantages_that_a_critic_or_the_outcome_gives_are_weighted(algorithm):
    """Every ratio is above the cap, so that each weight is the cap."""
    judge = ["models={judge: {model: x, train: full, head: value}}"] if "judge" in algorithm else []
    base = "{name: x, policy: {kind: vlm, model: x}, data: {path: x.jsonl, groups: 4, group_size: 6}}"
    models = SimpleNamespace(critics={"judge": TableCritic(0.4)}, parts={}, handles={})
    found = {}
    for cap in (None, 1e-3):
        weighted = "" if cap is None else f", mismatch: {{cap: {cap}}}"
        config = parse_config(base, "x.yaml", [*judge, f"algorithm={{name: {algorithm}{weighted}}}"])
        suite = RewardSuite([(Right(), 1.0)], min_valid_share=0.5)
        setup = build_training_setup(config, Elsewhere(), questions(), [], suite, models=models)
        found[cap] = torch.cat([batch.step_advantages for batch in collect(setup.source).micro_batches])
    assert found[None].abs().max() > 0.1
    torch.testing.assert_close(found[1e-3], 1e-3 * found[None])


def test_importance_correction_is_configurable():
    policy = TokenPolicy()
    assert build_importance_correction(GRPOConfig(), policy) is None
    found = build_importance_correction(GRPOConfig(mismatch=MismatchConfig(cap=3.0)), policy)
    assert found is not None and found.cap == 3.0
    assert (found.level, found.beyond, found.max_gap) == ("token", "truncate", None)
    mismatch = MismatchConfig(level="sequence", beyond="mask")
    served = build_importance_correction(GRPOConfig(mismatch=mismatch), policy, max_gap=0.3)
    assert served is not None and (served.level, served.beyond, served.max_gap) == ("sequence", "mask", 0.3)


def test_weights_of_tokens_and_of_sequences_in_closed_form():
    ratios = torch.tensor([[0.5, 4.0, 9.0], [1.5, 2.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    expected = {
        ("token", "truncate"): [[0.5, 2.5, 0.0], [1.5, 2.0, 1.0]],
        ("token", "mask"): [[0.5, 0.0, 0.0], [1.5, 2.0, 1.0]],
        ("sequence", "truncate"): [[2.0, 2.0, 0.0], [2.5, 2.5, 2.5]],
        ("sequence", "mask"): [[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]],
    }
    for (level, beyond), weights in expected.items():
        found, limited = engine_weights(ratios.log(), mask, 2.5, level, beyond)
        torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float64))
        capped = ratios > 2.5 if level == "token" else torch.tensor([[False], [True]]).expand(2, 3)
        assert limited.equal(capped & mask)


def test_sequence_weights_make_the_gradient_of_whole_answers_unbiased():
    """Two decisions, whose reward is of the pair: the sum over all answers that the engine may write, exactly."""
    torch.manual_seed(0)
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    own, engine = logits.log_softmax(-1), (logits + torch.randn(2, 3)).detach().log_softmax(-1)
    rewards = torch.randn(3, 3, dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    chosen, drawn = (torch.stack([each[0, pairs[:, 0]], each[1, pairs[:, 1]]], 1) for each in (own, engine))
    mask = torch.ones_like(chosen, dtype=torch.bool)
    (expected,) = torch.autograd.grad((chosen.sum(1).exp() * rewards.flatten()).sum(), logits, retain_graph=True)
    weights, _ = engine_weights((chosen - drawn).detach(), mask, 1e9, "sequence")
    estimated = (drawn.sum(1).exp()[:, None] * weights * rewards.flatten()[:, None] * chosen).sum()
    torch.testing.assert_close(torch.autograd.grad(estimated, logits)[0], expected)


def test_a_gap_above_the_bound_stops_the_run_before_an_update():
    policy = Elsewhere()
    origin = CorrectedRollouts(source(policy), ImportanceCorrection(policy, 2.0, max_gap=0.05))
    with pytest.raises(RunError, match=r"algorithm\.mismatch\.max_gap is 5\.0e-02.*No parameter"):
        collect(origin)
