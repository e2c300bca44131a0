"""What an update minimises, and whether it goes with the policy and the data."""

from __future__ import annotations

from typing import Any

from mmrl.build.policies import policy_class
from mmrl.build.reward_suites import Rewards
from mmrl.config.algorithm import (
    AlgorithmConfig,
    AWMConfig,
    DiffusionNFTConfig,
    DPOConfig,
    FlowRWRConfig,
    MPOConfig,
    PolicyGradientConfig,
    RewardGradientConfig,
)
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.pretraining import PretrainingAlgorithm
from mmrl.config.rewards import RewardConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.config.validation.checks import decisions_per_trajectory
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards import RewardSuite
from mmrl.rewards.core.registry import BUILT_IN, reward_class
from mmrl.training.objectives.base import Objective, check_compatible, uses_velocity_loss
from mmrl.training.objectives.imitation import SupervisedLearning
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.objectives.reward_gradient import DifferentiableReward, RewardGradient
from mmrl.training.objectives.surrogates import resolve_settings
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.validate_sampling import sampling_errors


def objective_class(
    algorithm: AlgorithmConfig | PretrainingAlgorithm, capabilities: frozenset[Capability]
) -> type[Any]:
    """The class that serves an algorithm on a policy of these powers: imitation and pairs have one for texts, and one
    for what is drawn by velocities."""
    if isinstance(algorithm, PolicyGradientConfig):
        return PolicyGradient
    if isinstance(algorithm, RewardGradientConfig):
        return RewardGradient
    if isinstance(algorithm, DiffusionNFTConfig | AWMConfig | FlowRWRConfig) or (
        uses_velocity_loss(capabilities) and not isinstance(algorithm, MPOConfig)
    ):
        return VelocityRegression
    if isinstance(algorithm, DPOConfig | MPOConfig):
        return PreferenceLearning
    return SupervisedLearning


def check(config: TrainConfig) -> None:
    """Refuse what cannot work, before any model is loaded.

    Raises:
        ConfigError: sizes that do not divide, or an objective that needs what the policy cannot do.
    """
    BatchPlan.of(config)
    policy = policy_class(config.policy)
    if problems := sampling_errors(config, policy.capabilities):
        raise ConfigError("\n".join(problems))
    for algorithm in (config.algorithm, *([config.pretraining.algorithm] if config.pretraining else [])):
        check_compatible(objective_class(algorithm, policy.capabilities), policy, algorithm.experience)
    check_differentiable(config)
    if isinstance(config.algorithm, PolicyGradientConfig):
        resolve_settings(config.algorithm, policy.capabilities, decisions_per_trajectory(config.sampling))


def build_objective(
    algorithm: AlgorithmConfig | PretrainingAlgorithm,
    policy: Any,
    sampling: AnySamplingConfig,
    rewards: Rewards | None = None,  # for algorithms that follow their gradient
) -> Objective:
    """The objective that a configuration names."""
    if isinstance(algorithm, RewardGradientConfig):
        return build_reward_gradient(algorithm, policy, sampling, rewards)
    if isinstance(algorithm, PolicyGradientConfig):
        tokens = isinstance(sampling, ImageTokenSamplingConfig)
        return PolicyGradient(
            policy, algorithm, policy.codes_per_image if tokens else decisions_per_trajectory(sampling)
        )
    return objective_class(algorithm, policy.capabilities)(policy, algorithm)


# Which rewards an algorithm can follow the gradient of.


def check_differentiable(config: TrainConfig) -> None:
    """Refuse an algorithm that differentiates rewards where one of them has no gradient; no weights are loaded.

    Raises:
        ConfigError: naming the reward, and those that have one.
    """
    if not isinstance(config.algorithm, RewardGradientConfig):
        return
    name = config.algorithm.name
    if problems := [line for i, reward in enumerate(config.rewards) for line in _problems(reward, i, name)]:
        raise ConfigError("\n".join(problems))


def build_reward_gradient(
    algorithm: RewardGradientConfig, policy: Any, sampling: AnySamplingConfig, rewards: Rewards | None
) -> RewardGradient:
    """The objective of a run's rewards.

    Raises:
        ConfigError: samples choose rewards of their own.
    """
    if not isinstance(rewards, RewardSuite) or not isinstance(sampling, SamplingConfig):
        raise ConfigError(f"algorithm: {algorithm.name} follows the gradient of the recipe's rewards, but samples ask "
                          "for rewards of their own: choose grpo or diffusion_nft")  # fmt: skip
    weighted = [DifferentiableReward(part.reward, rewards.weights[part.reward.name]) for part in rewards.parts]
    return RewardGradient(policy, algorithm, [each for each in weighted if each.weight], sampling.steps)


def _problems(reward: RewardConfig, number: int, algorithm: str) -> list[str]:
    place = f"rewards.{number}"
    if reward.gate is not None:
        return [f"{place}.gate: a gate has no gradient, which {algorithm} follows: leave it out, or choose grpo"]
    if reward.at_least is not None:
        return [f"{place}.at_least: a constraint acts on advantages, which {algorithm} has none of: leave it out"]
    if not reward.weight or reward_class(reward.name).differentiable:
        return []
    known = ", ".join(sorted(name for name in BUILT_IN if reward_class(name).differentiable))
    return [f"{place}.name: {reward.name} has no gradient, which {algorithm} follows: choose one that has ({known}), "
            "set its weight to 0 to watch it, or choose grpo"]  # fmt: skip
