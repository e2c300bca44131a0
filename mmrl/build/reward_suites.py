"""Rewards as configured, and as samples choose them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from mmrl.config.rewards import RewardConfig, ScoringConfig, multiplied
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rewards import RewardSuite, ScoreCache, WeightedReward
from mmrl.rewards.core.routing import RoutedRewards, SharedLoader, distinct_choices
from mmrl.training.rollouts.lagrangian import Constraint, Constraints

Rewards: TypeAlias = RewardSuite | RoutedRewards


def build_constraints(config: TrainConfig, rewards: Rewards) -> Constraints | None:
    """The rewards that are held above a threshold; None where there are none. `rewards` are those of the run.

    Raises:
        ConfigError: samples choose their own rewards, or less of a constrained reward is better.
    """
    if not multiplied(config.rewards):
        return None
    if not isinstance(rewards, RewardSuite):
        raise ConfigError(
            "rewards: at_least holds the mean of all answers above a threshold, but samples ask for rewards of their "
            "own: leave it out"
        )
    found = []
    for chosen, part in zip(config.rewards, rewards.parts, strict=True):
        if chosen.at_least is None:
            continue
        if part.reward.spec.sign < 0:
            raise ConfigError(f"rewards: less of {chosen.name} is better, so at_least would hold it at its worst")
        settings = chosen.lagrange
        found.append(Constraint(part.reward.name, chosen.at_least, settings.start, settings.rate, settings.max))
    return Constraints(found)


def build_rewards(
    config: TrainConfig, samples: Sequence[Sample], load: SharedLoader, watched: Sequence[str] = ()
) -> Rewards:
    """The rewards of a run as one: each sample's own, and the configuration's for those that choose none.

    `load` is one for all that a run scores, so that a model that rewards is in memory once. `watched` are names of
    further rewards, measured and never trained on.
    """
    return build_reward_suite(
        config.rewards, samples, load, watched, config.scoring, min_valid_share=config.training.min_valid_share
    )


def build_reward_suite(
    rewards: Sequence[RewardConfig],
    samples: Sequence[Sample],
    load: SharedLoader,
    watched: Sequence[str] = (),
    scoring: ScoringConfig | None = None,
    min_valid_share: float = 0.0,
) -> Rewards:
    """Rewards as one: each sample's own, and `rewards` for those that choose none; `watched` are measured as well."""
    scoring = scoring or ScoringConfig()
    default = [
        WeightedReward(
            load(chosen.name, **chosen.args),
            weight=chosen.weight if chosen.at_least is None else 0.0,
            gate=chosen.gate,
            retries=chosen.retries,
            deadline_s=chosen.deadline_s,
            batch_size=chosen.batch_size,
            concurrency=chosen.concurrency,
        )
        for chosen in rewards
    ]
    also = [WeightedReward(load(name), weight=0.0) for name in watched]
    cache = ScoreCache(scoring.cache) if scoring.cache else None
    choices = distinct_choices(samples)
    if not choices:
        return RewardSuite(
            [*default, *also], renormalise=scoring.renormalise, min_valid_share=min_valid_share, cache=cache
        )
    return RoutedRewards(
        default,
        choices,
        load=load,
        monitored=also,
        renormalise=scoring.renormalise,
        min_valid_share=min_valid_share,
        cache=cache,
    )
