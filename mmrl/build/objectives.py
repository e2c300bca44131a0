"""Build the objective of a run, and check a configuration before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmrl.build.policies import policy_class
from mmrl.build.reward_suites import Rewards
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.reward_gradient import RewardGradientConfig
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.sampling import AnySamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.config.validation.checks import validation_errors
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards.core.registry import BUILT_IN, reward_class
from mmrl.training.objectives.base import Objective, ObjectiveInputs, check_compatible, uses_velocity_loss


def objective_class(algorithm: AlgorithmConfig, capabilities: frozenset[Capability]) -> type[Objective]:
    """Return the class of an algorithm's objective on a policy with these capabilities."""
    chosen: type[Objective] = algorithm.objective_class(uses_velocity_loss(capabilities))
    return chosen


def build_objective(
    algorithm: AlgorithmConfig,
    policy: Any,
    sampling: AnySamplingConfig,
    rewards: Rewards | None = None,  # for algorithms that follow their gradient
) -> Objective:
    """Return the objective that a configuration names."""
    return objective_class(algorithm, policy.capabilities).build(algorithm, ObjectiveInputs(policy, sampling, rewards))


def check(config: TrainConfig) -> None:
    """Check a whole configuration; no model is loaded.

    Raises:
        ConfigError: sizes that do not divide, settings that cannot work together, or an objective that needs a
            capability that the policy lacks.
    """
    BatchPlan.of(config)
    policy = policy_class(config.policy)
    algorithms = [config.algorithm, *([config.pretraining.algorithm] if config.pretraining else [])]
    for algorithm in algorithms:
        check_compatible(objective_class(algorithm, policy.capabilities), policy, algorithm.experience)
    if errors := [*validation_errors(config, policy.capabilities), *_flat_reward_errors(config)]:
        raise ConfigError("\n".join(errors))


def _flat_reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each reward without a gradient, where the algorithm follows the gradient of rewards."""
    if not isinstance(config.algorithm, RewardGradientConfig):
        return
    name = config.algorithm.name
    for i, reward in enumerate(config.rewards):
        if reward.gate is not None:
            yield f"rewards.{i}.gate: a gate has no gradient, which {name} follows: leave it out, or choose grpo"
        elif reward.at_least is not None:
            yield f"rewards.{i}.at_least: a constraint acts on advantages, which {name} has none of: leave it out"
        elif reward.weight and not reward_class(reward.name).differentiable:
            known = ", ".join(sorted(each for each in BUILT_IN if reward_class(each).differentiable))
            yield (
                f"rewards.{i}.name: {reward.name} has no gradient, which {name} follows: choose one that has "
                f"({known}), set its weight to 0 to measure it, or choose grpo"
            )
