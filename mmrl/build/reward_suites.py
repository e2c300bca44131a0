"""Build the reward suite of a run from its configuration and from the rewards that samples name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.rewards import RewardConfig, ScoringConfig, constrained
from mmrl.config.train import TrainConfig
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import ConfigError
from mmrl.rewards import RewardSuite, ScoreCache, WeightedReward
from mmrl.rewards.core.executor import Condition
from mmrl.rewards.core.routing import RoutedRewards, SharedLoader, distinct_choices
from mmrl.training.rollouts.lagrangian import Constraint, Constraints

Rewards: TypeAlias = RewardSuite | RoutedRewards


def build_constraints(configured: Sequence[RewardConfig], rewards: Rewards) -> Constraints | None:
    """Return the rewards of a run, as `configured`, whose mean is constrained to a threshold; None without any.

    Raises:
        ConfigError: Samples name other rewards, or a lower value of a constrained reward is better.
    """
    if not constrained(configured):
        return None
    if not isinstance(rewards, RewardSuite):
        raise ConfigError(
            "rewards: at_least holds the mean of all answers above a threshold, but samples name other "
            "rewards: leave it out"
        )
    found = []
    for chosen, part in zip(configured, rewards.parts, strict=True):
        if chosen.at_least is None:
            continue
        if part.reward.spec.sign < 0:
            raise ConfigError(f"rewards: a lower {chosen.name} is better, so at_least would hold it at its worst")
        settings = chosen.lagrange
        found.append(Constraint(part.reward.name, chosen.at_least, settings.start, settings.rate, settings.max))
    return Constraints(found)


def replace_named_rewards(samples: Sequence[Sample], scoring: ScoringConfig) -> list[Sample]:
    """Return the samples with the rewards that `scoring.by_source` has for their source or task."""
    chosen = _choices_by_source(scoring)
    return [
        replace(sample, rewards=chosen[key]) if (key := _reward_key(sample, chosen)) is not None else sample
        for sample in samples
    ]


def _choices_by_source(scoring: ScoringConfig) -> dict[str, tuple[RewardChoice, ...]]:
    return {
        key: tuple(RewardChoice(reward.name, reward.weight, reward.args) for reward in rewards)
        for key, rewards in scoring.by_source.items()
    }


def unused_rewards(config: TrainConfig, samples: Sequence[Sample]) -> str:
    """Return a caution if weighted rewards of the run score no sample, since all samples have others; else ""."""
    named = {choice.name for sample in samples for choice in sample.rewards}
    unused = [reward.name for reward in config.rewards if reward.weight and reward.name not in named]
    if not unused or not all(sample.rewards for sample in samples):
        return ""
    kind = samples[0].task or samples[0].source
    return (
        f"rewards: {', '.join(unused)} scores no answer: each of the {len(samples):,} samples names its own rewards or "
        f"has those of its task ({', '.join(sorted(named))}). For others, set scoring.by_source={{{kind}: "
        f"[{{name: {unused[0]}}}]}}"
    )


def _reward_key(sample: Sample, chosen: Mapping[str, Any]) -> str | None:
    return next((key for key in (sample.source, sample.task) if key in chosen), None)


def build_rewards(
    config: TrainConfig, samples: Sequence[Sample], load: SharedLoader, monitored: Sequence[str] = ()
) -> Rewards:
    """Build the rewards of a run; one loader for all its suites keeps each reward model in memory once."""
    return build_reward_suite(
        config.rewards, samples, load, monitored, config.scoring, min_valid_share=config.training.min_valid_share
    )


def build_reward_suite(
    rewards: Sequence[RewardConfig],
    samples: Sequence[Sample],
    load: SharedLoader,
    monitored: Sequence[str] = (),
    scoring: ScoringConfig | None = None,
    min_valid_share: float = 0.0,
) -> Rewards:
    """Build a suite: `rewards` for samples that name none, each other sample's own, and `monitored` for all.

    Rewards that are `monitored` are measured and have no weight.
    """
    scoring = scoring or ScoringConfig()
    loaded = [load(chosen.name, **chosen.args) for chosen in rewards]
    names = {chosen.known_as: reward.name for chosen, reward in zip(rewards, loaded, strict=True)}
    default = [
        WeightedReward(
            reward,
            weight=chosen.weight if chosen.at_least is None else 0.0,
            counts_if=_condition(chosen, names),
            after={names[name]: least for name, least in chosen.after.items()},
            **chosen.model_dump(include={"gate", "retries", "deadline_s", "batch_size", "concurrency"}),
        )
        for chosen, reward in zip(rewards, loaded, strict=True)
    ]
    also = [WeightedReward(load(name), weight=0.0) for name in monitored]
    cache = ScoreCache(scoring.cache) if scoring.cache else None
    settings: dict[str, Any] = {"renormalise": scoring.renormalise, "min_valid_share": min_valid_share, "cache": cache}
    trusted = list(_choices_by_source(scoring).values())
    if choices := distinct_choices(samples, trusted):
        return RoutedRewards(default, choices, load=load, trusted=trusted, monitored=also, **settings)
    return RewardSuite([*default, *also], **settings)


def named_by_values(advantage: Any, configured: Sequence[RewardConfig], rewards: Rewards) -> Any:
    """Return the section of an advantage whose channels name rewards as their values do, not as the recipe does."""
    if not isinstance(advantage, AdvantageConfig) or not advantage.channels or not isinstance(rewards, RewardSuite):
        return advantage
    names = {chosen.known_as: part.reward.name for chosen, part in zip(configured, rewards.parts, strict=True)}
    channels = tuple(
        each.model_copy(
            update={
                "rewards": tuple(names[name] for name in each.rewards),
                "among": {names[name]: value for name, value in each.among.items()},
            }
        )
        for each in advantage.channels
    )
    return advantage.model_copy(update={"channels": channels})


def _condition(chosen: RewardConfig, names: Mapping[str, str]) -> Condition | None:
    """Return the condition of a reward; `names` maps its name in the configuration to the one of its values."""
    if chosen.counts_if is None:
        return None
    return Condition(names[chosen.counts_if.reward], chosen.counts_if.at_least)
