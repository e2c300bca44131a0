"""Validation of `rewards`: constraints, gates and weights that cannot work together or with the advantage."""

from __future__ import annotations

from collections.abc import Iterator

from mmrl.config.algorithms.advantage import ADVANTAGES, AdvantageConfig
from mmrl.config.rewards import LagrangeConfig, constrained, summed
from mmrl.config.train import TrainConfig


def reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem."""
    rewards = config.rewards
    names = [reward.name for reward in rewards]
    yield from _constraint_errors(config)
    if not names and config.policy.kind != "vlm" and config.algorithm.experience == "rollouts":
        yield "rewards: name at least one, as `mmrl rewards list` shows them"
    for i, name in enumerate(names):
        if name in names[:i]:
            yield f"rewards.{i}.name: {name} is there twice, and their scores could not be told apart"
    for i, name in enumerate(config.evaluation.rewards):
        if name in names:
            yield f"evaluation.rewards.{i}: {name} is trained on, so it is evaluated in any case"


def _constraint_errors(config: TrainConfig) -> Iterator[str]:
    rewards = config.rewards
    is_field = "advantage" in type(config.algorithm).model_fields  # a class variable has no effect on what is learnt
    advantage = getattr(config.algorithm, "advantage", None) if is_field else None
    if constrained(rewards):
        if not (isinstance(advantage, AdvantageConfig) and advantage.takes_constraints):
            name = "this algorithm" if advantage is None else advantage.name
            choices = [each for each in ADVANTAGES.built_in if ADVANTAGES.load(each).takes_constraints]
            yield (
                "rewards: at_least adds a constraint's advantages to those of the other rewards, which goes with "
                f"algorithm.advantage.name {', '.join(choices)}, and not with {name}"
            )
        if not summed(rewards):
            yield "rewards: all of them are constraints (at_least), so nothing is maximised: take at_least out of one"
        if config.data.group_sampling.name == "dynamic":
            yield (
                "data.group_sampling: dynamic drops groups whose totals are equal, which a constraint (at_least) may "
                "learn from: leave one of them out"
            )
    for i, reward in enumerate(rewards):
        is_constraint, limits = reward.at_least is not None, reward.lagrange
        if is_constraint and reward.weight != 1.0:
            yield f"rewards.{i}.weight: with at_least, {reward.name} is weighed by its multiplier: leave the weight out"
        if is_constraint and reward.gate is not None:
            yield (
                f"rewards.{i}.gate: {reward.name} has at_least, which holds its mean up, and a gate, which shuts out "
                "single answers: choose one"
            )
        if not is_constraint and limits != LagrangeConfig():
            yield f"rewards.{i}.lagrange: it moves the multiplier of a constraint, and {reward.name} has no at_least"
        if limits.start > limits.max:
            yield f"rewards.{i}.lagrange.start: {limits.start:g} is above lagrange.max, {limits.max:g}"
