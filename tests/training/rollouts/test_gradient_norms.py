"""Norms of answers' gradients against a closed form, and the advantages of a run that reads them or its tasks."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr

from mmrl.algorithms import difficulty_factors, optimal_baseline_advantages, task_mean_advantages
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.gradient_norms import exact_squared_norms, recorded_squared_norms
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source


def written(policy: TokenPolicy, seed: int = 0):
    return policy.rollout([RolloutRequest(each, 4, group) for group, each in enumerate(questions())], seed=seed)


def closed_form(policy: TokenPolicy, rollout) -> torch.Tensor:
    """The gradient of log softmax in the logits is the token's unit vector less the probabilities."""
    p = policy.logits[rollout.recording.prompts].detach().softmax(-1)
    unit = torch.nn.functional.one_hot(rollout.recording.tokens, p.shape[-1])
    return ((unit - p).square().sum(-1) * rollout.mask).sum(1)


def test_exact_norms_equal_the_closed_form():
    policy = TokenPolicy(spread=2.0)
    one, other = written(policy), written(policy, seed=1)
    norms = exact_squared_norms(policy, [one, other], torch.ones(64, dtype=torch.bool))
    expected = torch.cat([closed_form(policy, one), closed_form(policy, other)])
    torch.testing.assert_close(norms, expected)
    assert policy.logits.grad is None


def test_only_what_is_wanted_is_computed():
    policy = TokenPolicy(spread=2.0)
    rollout = written(policy)
    wanted = torch.arange(32) % 3 == 0
    norms = exact_squared_norms(policy, [rollout], wanted)
    torch.testing.assert_close(norms, closed_form(policy, rollout).where(wanted, 0.0))


def test_recorded_norms_bound_those_in_the_logits():
    policy = TokenPolicy(spread=2.0, vocabulary=9)
    rollout = written(policy)
    exact, recorded = closed_form(policy, rollout), recorded_squared_norms([rollout])
    assert bool((recorded <= exact + 1e-6).all() and (exact <= 2 * recorded + 1e-6).all())
    assert spearmanr(exact, recorded).statistic > 0.9
    chance = rollout.log_probs.sum(1)  # the control: the chance of the whole answer says less
    assert abs(spearmanr(exact, chance).statistic) < spearmanr(exact, recorded).statistic


def estimated(**settings: object):
    estimator = AdvantageEstimator(AdvantageConfig(**settings), {"right": 1.0})
    found = source(TokenPolicy(spread=1.0), advantage_estimator=estimator)
    batches = collect(found).micro_batches
    rollouts = [each.rollout for each in batches]
    totals, groups = torch.cat([each.totals for each in batches]), torch.cat([each.group_index for each in rollouts])
    return found.policy, rollouts, totals, groups, torch.cat([each.advantages for each in batches])


@pytest.mark.parametrize("norms", ["exact", "recorded"])
def test_a_run_uses_the_norms(norms):
    policy, rollouts, totals, groups, advantages = estimated(name="optimal_baseline", norms=norms)
    found = (
        torch.cat([closed_form(policy, each) for each in rollouts])
        if norms == "exact"
        else recorded_squared_norms(rollouts)
    )
    expected = optimal_baseline_advantages(totals, groups, found)
    torch.testing.assert_close(advantages, expected)
    assert bool(advantages.any())


@pytest.mark.parametrize("difficulty", [None, {"gamma": 0.5, "smoothing": 0.7}])
def test_a_run_compares_within_tasks(difficulty):
    _, rollouts, totals, groups, advantages = estimated(name="task_mean", difficulty=difficulty)
    sources = [sample.source for rollout in rollouts for sample in rollout.samples]
    assert set(sources) == {"even", "odd"}
    tasks = torch.tensor([each == "odd" for each in sources]).long()
    expected = task_mean_advantages(totals, groups, tasks)
    if difficulty is not None:
        expected = expected * difficulty_factors(totals, groups, tasks, **difficulty)
    torch.testing.assert_close(advantages, expected)
    one_task = task_mean_advantages(totals, groups, torch.zeros_like(tasks))
    assert not torch.allclose(advantages, one_task)


def test_rows_that_depend_on_one_another_have_no_norms():
    policy = TokenPolicy()
    policy.capabilities = policy.capabilities - {Capability.SELECT_ROWS}
    estimator = AdvantageEstimator(AdvantageConfig(name="optimal_baseline"), {"right": 1.0})
    with pytest.raises(ConfigError, match="norms of gradients are computed row by row"):
        source(policy, advantage_estimator=estimator)
