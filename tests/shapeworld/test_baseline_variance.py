"""The variance of a group's gradient against the vectors themselves, and the measures of the base's own gradients."""

from __future__ import annotations

import pytest
import torch

from mmrl.algorithms import rloo_advantages
from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.config import load_config
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.gradient_norms import exact_squared_norms
from mmrl_shapeworld.reasoning.baseline_variance import ANSWERS, answer_gradients, group_variance, learnt_with


def answers(norms: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards of 0 and 1 by turns, and gradients of these norms in random directions."""
    vectors = torch.randn(len(norms), 50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    vectors = vectors / vectors.norm(dim=1, keepdim=True) * norms[:, None]
    return (torch.arange(len(norms)) % 2).double(), vectors


@pytest.mark.slow
def test_variance_of_two_groups_by_hand():
    """With one division into groups of all but one answer each, the trace of the covariance of two means."""
    rewards, vectors = answers(torch.ones(8, dtype=torch.float64))
    found = group_variance(rewards, vectors @ vectors.T, None, seed=0, group=4)
    expected, generator = 0.0, torch.Generator()
    for draw in range(4000):
        order = torch.randperm(8, generator=generator.manual_seed(draw))
        weights = rloo_advantages(rewards[order], torch.arange(8) // 4)[:, None] * vectors[order] / 4
        first, second = weights[:4].sum(0), weights[4:].sum(0)
        expected += float((first - second).square().sum()) / 2 / 4000
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.integration
def test_the_weighted_mean_has_less_variance_where_norms_differ():
    """Wrong answers have gradients of three times the norm; with equal norms the two baselines are the same."""
    unequal = torch.tensor([3.0, 1.0] * 32, dtype=torch.float64)
    rewards, vectors = answers(unequal)
    products = vectors @ vectors.T
    plain = group_variance(rewards, products, None, seed=1)
    assert group_variance(rewards, products, products.diagonal(), seed=1) < 0.8 * plain
    reversed_norms = 1 / products.diagonal()  # the control: weights the wrong way round have more
    assert group_variance(rewards, products, reversed_norms, seed=1) > plain
    rewards, vectors = answers(torch.ones(64, dtype=torch.float64))
    products = vectors @ vectors.T
    same = group_variance(rewards, products, products.diagonal(), seed=1)
    assert same == pytest.approx(group_variance(rewards, products, None, seed=1))


@pytest.mark.slow
def test_gradients_of_the_base():
    (rewards, products, recorded), *rest = answer_gradients(3, 2, "remainders")
    assert len(rest) == 1
    assert rewards.shape == (ANSWERS,)
    assert set(rewards.tolist()) == {0.0, 1.0}
    assert products.shape == (ANSWERS, ANSWERS)
    assert torch.linalg.eigvalsh(products).min() > -1e-3 * products.diagonal().max()
    assert bool((recorded > 0).all())
    best = learnt_with(3, {"name": "optimal_baseline"}, iterations=0, prompts=2)
    plain = learnt_with(3, {"name": "rloo"}, iterations=0, prompts=2)
    assert len(best["log_variance"]) == 2
    assert best["correlation"] == plain["correlation"]
    assert sum(best["log_variance"]) < sum(plain["log_variance"])


@pytest.mark.integration
def test_norms_of_single_rows_are_those_within_a_batch():
    """The oracle: each row's gradient from one replay of the whole batch."""
    config = load_config("shapes-reasoning", ["policy.model=shapeworld:remainders"])
    policy = build_policy(config.policy, config.sampling, config.media)
    samples = prepare_samples(
        policy, config.policy, config.answers, config.sampling, load_samples("shapeworld:remainders-train")[:2]
    )
    rollout = policy.rollout([RolloutRequest(each, 3, group) for group, each in enumerate(samples)], seed=0)
    parameters, found = list(policy.parameters_to_train().values()), []
    policy.replay(rollout, range(rollout.mask.shape[1]), lambda now: found.append(now.log_probs))
    norms = []
    for row in range(6):
        total = found[0][row].where(rollout.mask[row], 0.0).sum()
        gradients = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)
        norms.append(sum(float(each.square().sum()) for each in gradients if each is not None))
    wanted = torch.tensor([True, False, True, True, True, True])
    expected = torch.tensor(norms).where(wanted, 0.0)
    torch.testing.assert_close(exact_squared_norms(policy, [rollout], wanted), expected, rtol=1e-3, atol=1e-3)
