"""The gradient of an update does not depend on how its trajectories are cut into micro-batches.

The rows are drawn in one call and then replayed in calls of fewer rows: same noise, same prompts, same advantages. So
what differs is how losses are normalised and weighted, and the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mmrl.algorithms import broadcast_to_decisions, grpo_advantages
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.forward_process import DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.data.sample import Sample
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.run.display import QuietDisplay
from mmrl.training.training_loop import TrainingLoop
from tests.generation.recorded_rows import rows_of

ROWS = 6
FAILED = float("nan")
REWARDS = {
    "all scored": [0.1, 0.9, 0.4, 0.3, 0.8, 0.2],
    "some not": [0.1, FAILED, 0.4, 0.3, FAILED, FAILED],
    "a whole micro-batch not": [0.1, 0.9, 0.4, 0.3, FAILED, FAILED],
}


class PreparedBatches:
    """A source of given micro-batches."""

    def __init__(self, batches: list[MicroBatch]) -> None:
        self.batches = batches

    def collect(self, iteration, progress, phases) -> Experience:
        return Experience(self.batches, {"reward/total": 0.0})

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class FixedNoise(VelocityRegression):
    """Each row meets the same noise at the same levels, whichever micro-batch it is in."""

    rows: Iterator[range]  # of each micro-batch

    def backward(self, *args) -> None:
        self.here = list(next(self.rows))
        super().backward(*args)

    def noise_levels(self, clean: Tensor, seed: int) -> Iterator[tuple[float, Tensor]]:
        for number, sigma in enumerate((0.3, 0.8)):
            generator = torch.Generator().manual_seed(number)
            yield sigma, torch.randn(ROWS, *clean.shape[1:], generator=generator)[self.here]


@pytest.fixture
def update(make_policy, tmp_path) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """The gradient that one update of the Trainer leaves, and its metrics."""

    def gradient(algorithm: str, rewards: list[float], cuts: list[int], aggregate: str = "sequence"):
        torch.manual_seed(0)
        policy = make_policy("sd3")
        parameters = policy.parameters_to_train()
        rollout = policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=ROWS, group=0)], seed=3)
        calls = [range(*bounds) for bounds in pairwise([0, *cuts, ROWS])]
        if algorithm == "grpo":
            config = GRPOConfig(clip={"low": 0.2}, kl={"coef": 0.1}, aggregate=aggregate)
            objective = PolicyGradient(policy, config)
        else:
            nft = DiffusionNFTConfig(advantage=AdvantageConfig(clip=5.0), kl={"coef": 0.1}, num_noise_levels=2)
            objective = FixedNoise(policy, nft)
            objective.rows = iter(calls)
        with torch.no_grad():  # away from the old policy and the reference, so that every term has a gradient
            for parameter in parameters.values():
                parameter += 0.1 * torch.randn_like(parameter)
        trainer = TrainingLoop(
            policy=policy,
            objective=objective,
            source=PreparedBatches(micro_batches(rollout, torch.tensor(rewards), calls)),
            optimizer_config=OptimizerConfig(max_grad_norm=1e9),
            config=TrainingConfig(iterations=1, max_replay_gap=1.0),
            seed=0,
            run=tmp_path,
            trackers=[],
            display=QuietDisplay(),
        )
        metrics, _ = trainer.iterate()
        return torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]), metrics

    return gradient


def micro_batches(rollout: Rollout, rewards: Tensor, calls: list[range]) -> list[MicroBatch]:
    """Advantages come from the whole group, as in a run, whose groups may span calls."""
    advantages = grpo_advantages(rewards, rollout.group_index, std="group", ddof=0)
    credit = broadcast_to_decisions(advantages, rollout.mask)
    return [
        MicroBatch(rows_of(rollout, rows), advantages[rows], rewards[rows].isfinite(), credit[rows])
        for rows in map(list, calls)
    ]


def difference(one: Tensor, other: Tensor) -> float:
    """Relative to the gradient's norm."""
    return ((one - other).norm() / one.norm()).item()


@pytest.mark.slow
@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("algorithm", ["grpo", "diffusion_nft"])
def test_k_micro_batches_give_the_gradient_of_one(algorithm, rewards, update):
    whole, metrics = update(algorithm, REWARDS[rewards], cuts=[])
    assert whole.norm() > 0 and metrics["kl"] > 0
    for cuts in ([1, 4], [1, 2, 3, 4, 5]):
        accumulated, _ = update(algorithm, REWARDS[rewards], cuts)
        assert difference(whole, accumulated) < 1e-5, cuts
    other, _ = update(algorithm, REWARDS["all scored"][::-1], cuts=[])
    assert difference(whole, other) > 1e-2  # the control


@pytest.mark.integration
def test_mean_over_decisions_accumulates(update):
    whole, _ = update("grpo", REWARDS["some not"], [], aggregate="token")
    accumulated, _ = update("grpo", REWARDS["some not"], [1, 4], aggregate="token")
    assert difference(whole, accumulated) < 1e-5


@pytest.mark.integration
@pytest.mark.parametrize("algorithm", ["grpo", "diffusion_nft"])
def test_unscored_rows_have_no_gradient(algorithm, update):
    """Not in the policy's term and not in the penalty: without it, the gradient is the same."""
    rewards = [0.1, 0.9, 0.4, FAILED, FAILED, FAILED]
    with_it, _ = update(algorithm, rewards, [])
    alone, _ = update(algorithm, rewards, [3])  # the second micro-batch has a share of nothing
    assert difference(with_it, alone) < 1e-5
