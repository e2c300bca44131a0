"""Keys of the algorithm that have no effect beside others, or no meaning."""

from __future__ import annotations

from mmrl.config.algorithm import (
    AlgorithmConfig,
    ClipConfig,
    DPOConfig,
    GammaConfig,
    MPOConfig,
    PolicyGradientConfig,
    RewardGradientConfig,
    TemperatureConfig,
)
from mmrl.config.algorithms.advantage import HistoryConfig


def validate_algorithm(algorithm: AlgorithmConfig) -> list[tuple[bool, str]]:
    """Whether each misfit is there, and the line that says so. Whatever policy is trained."""
    if isinstance(algorithm, PolicyGradientConfig):
        return _of_policy_gradient(algorithm)
    if isinstance(algorithm, RewardGradientConfig):
        return _of_reward_gradient(algorithm)
    if isinstance(algorithm, DPOConfig):
        idle = f"algorithm.label_smoothing: the loss {algorithm.loss} has none: choose sigmoid, or leave it out"
        return [(algorithm.label_smoothing > 0 and algorithm.loss != "sigmoid", idle)]
    if isinstance(algorithm, MPOConfig):
        weightless = not (algorithm.preference or algorithm.quality or algorithm.generation)
        return [(weightless, "algorithm: preference, quality and generation are all 0, so there is nothing to learn")]
    return []


def _of_policy_gradient(algorithm: PolicyGradientConfig) -> list[tuple[bool, str]]:
    surrogate, clip = algorithm.surrogate, algorithm.clip
    high = clip.high or clip.low
    advantage = algorithm.advantage
    return [
        (
            algorithm.ratio == "guard" and surrogate not in ("clip", "sapo"),
            f"algorithm.ratio: guard is for clip and sapo, which learn through the ratio, and {surrogate} is chosen",
        ),
        (
            algorithm.ratio == "guard" and algorithm.importance != "token",
            f"algorithm.ratio: guard normalises each step's own ratio; importance {algorithm.importance} shares one",
        ),
        (
            advantage.name != "running" and advantage.history != HistoryConfig(),
            f"algorithm.advantage.history: only running looks back, and {advantage.name} is chosen",
        ),
        (
            advantage.name == "branch" and advantage.extremes_threshold is not None,
            "algorithm.advantage.extremes_threshold: branch gives each step its own credit: leave one of them out",
        ),
        (
            surrogate not in ("clip", "cispo") and clip != ClipConfig(),
            f"algorithm.clip: the surrogate {surrogate} clips nothing: leave it out, or choose the surrogate clip",
        ),
        (
            surrogate == "cispo" and clip.dual is not None,
            "algorithm.clip.dual: cispo limits every ratio already, by clip.high: leave it out",
        ),
        (
            surrogate == "clip" and clip.dual is not None and high is not None and clip.dual <= 1 + high,
            f"algorithm.clip.dual: {clip.dual} does not lie above the ratio's ceiling, 1 + {high}",
        ),
        (
            surrogate != "sapo" and algorithm.temperature != TemperatureConfig(),
            f"algorithm.temperature: it shapes the surrogate sapo, and {surrogate} is chosen",
        ),
        (
            surrogate != "vespo" and algorithm.gamma != GammaConfig(),
            f"algorithm.gamma: it shapes the surrogate vespo, and {surrogate} is chosen",
        ),
        (
            algorithm.aggregate != "constant" and algorithm.length is not None,
            f"algorithm.length: aggregate constant divides by it, and {algorithm.aggregate} is chosen: leave it out",
        ),
    ]


def _of_reward_gradient(algorithm: RewardGradientConfig) -> list[tuple[bool, str]]:
    one_step = algorithm.steps == 1 and algorithm.truncation == "fixed"
    return [
        (
            algorithm.renoised is not None and not (one_step and algorithm.jump is None),
            "algorithm.renoised: noise is put on x_0 for the last step alone: set steps to 1 and leave truncation and "
            "jump out, or leave renoised out",
        ),
        (
            algorithm.detach and algorithm.steps == 1,
            "algorithm.detach: a single step has nothing before it to be cut from: raise steps, or leave detach out",
        ),
        (
            algorithm.truncation == "random" and algorithm.steps == 1,
            "algorithm.truncation: a random number from 1 to steps, which is 1: raise steps, or leave it unset",
        ),
        (
            algorithm.kl.coef > 0 and algorithm.kl.kind != "velocity_mse",
            f"algorithm.kl.kind: {algorithm.kl.kind} compares stochastic decisions, of which {algorithm.name} has "
            "none: choose velocity_mse",
        ),
    ]
