"""Ways to put several rewards together that cannot work beside one another."""

from __future__ import annotations

from mmrl.config.algorithm import AdvantageConfig, BestOfConfig, ExponentialConfig
from mmrl.config.data import DataConfig, DynamicGroupSamplingConfig
from mmrl.config.rewards import LagrangeConfig, RewardConfig, ScoringConfig, multiplied, weighed

ONE_BY_ONE = ("gdpo", "pareto")
"""Advantages that take rewards one by one, and never their total."""
ADD_UP = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "gdpo")
"""Advantages that those of a constraint can be added to."""


def validate_multi_reward(
    rewards: tuple[RewardConfig, ...],
    scoring: ScoringConfig,
    data: DataConfig,
    advantage: AdvantageConfig | BestOfConfig | ExponentialConfig | None,  # None: the algorithm has none
) -> list[tuple[bool, str]]:
    """Whether each misfit is there, and the line that says so."""
    found = _of_constraints(rewards, data, advantage)
    if isinstance(advantage, AdvantageConfig) and advantage.name in ONE_BY_ONE:
        found += _of_one_by_one(rewards, scoring, data, advantage.name)
    return found


def _of_one_by_one(
    rewards: tuple[RewardConfig, ...], scoring: ScoringConfig, data: DataConfig, name: str
) -> list[tuple[bool, str]]:
    what = {"gdpo": "normalises each of several rewards", "pareto": "weighs several rewards against one another"}[name]
    return [
        (
            len(weighed(rewards)) < 2,
            f"algorithm.advantage.name: {name} {what}, and there is one: choose grpo",
        ),
        (
            any(reward.gate is not None for reward in rewards),
            f"rewards: a gate decides on the total, which {name} does not look at: leave the gate out, or choose grpo",
        ),
        (
            scoring.renormalise,
            f"scoring.renormalise: {name} takes the rewards one by one, so there is no sum to scale up: leave it out",
        ),
        (
            name == "pareto" and isinstance(data.group_sampling, DynamicGroupSamplingConfig),
            "data.group_sampling: dynamic drops groups whose totals are equal, but pareto learns from those whose "
            "rewards differ one by one: leave it out, or choose grpo",
        ),
    ]


def _of_constraints(
    rewards: tuple[RewardConfig, ...],
    data: DataConfig,
    advantage: AdvantageConfig | BestOfConfig | ExponentialConfig | None,
) -> list[tuple[bool, str]]:
    constrained = bool(multiplied(rewards))
    name = advantage.name if advantage is not None else None
    found = [
        (
            constrained and name not in ADD_UP,
            "rewards: at_least adds a constraint's advantages to those of the other rewards, which goes with "
            f"algorithm.advantage.name {', '.join(ADD_UP)}, and not with {name or 'this algorithm'}",
        ),
        (
            constrained and not weighed(rewards),
            "rewards: all of them are constraints (at_least), so nothing is maximised: take at_least out of one",
        ),
        (
            constrained and isinstance(data.group_sampling, DynamicGroupSamplingConfig),
            "data.group_sampling: dynamic drops groups whose totals are equal, which a constraint (at_least) may learn "
            "from: leave one of them out",
        ),
    ]
    for i, reward in enumerate(rewards):
        held = reward.at_least is not None
        most, start = reward.lagrange.max, reward.lagrange.start
        found += [
            (
                held and reward.weight != 1.0,
                f"rewards.{i}.weight: with at_least, {reward.name} is weighed by its multiplier: leave the weight out",
            ),
            (
                held and reward.gate is not None,
                f"rewards.{i}.gate: {reward.name} has at_least, which holds its mean up, and a gate, which shuts out "
                "single answers: choose one",
            ),
            (
                not held and reward.lagrange != LagrangeConfig(),
                f"rewards.{i}.lagrange: it moves the multiplier of a constraint, and {reward.name} has no at_least",
            ),
            (
                start > most,
                f"rewards.{i}.lagrange.start: {start:g} is above lagrange.max, {most:g}",
            ),
        ]
    return found
