"""Parts of an advantage that are normalised by themselves: the key `algorithm.advantage.channels`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from mmrl.config.rewards import constrained, summed
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.algorithms.advantage import AdvantageConfig
    from mmrl.config.train import TrainConfig


PLAIN_GRADIENT = "mmrl.training.objectives.policy_gradient:PolicyGradient"
"""The objective whose gradient, at the first update, is linear in advantages, without a part that has none."""


class LearnedWeightConfig(Section):
    """The weight of a channel as an outer gradient moves it: up where the channel helps the others, down where not."""

    rate: NonNegativeFloat = 0.5
    """The step of the outer problem. After an iteration the weight grows by rate times the cosine between the
    gradient of the channels without `learn` now and the channel's gradient of the iteration before. 0: it stays."""
    most: PositiveFloat = 2.0
    """The largest weight; the smallest is 0."""


class ChannelConfig(Section):
    """A part of the advantage that is normalised by itself."""

    rewards: Annotated[tuple[str, ...], Field(min_length=1)]
    """The names of rewards, whose weighted sum is what the channel compares."""
    among: dict[str, float] = Field(default_factory=dict)
    """Only the answers of a group are compared whose rewards of these names are at least these values. The others have
    no advantage from this channel. Empty: all answers are compared."""
    weight: NonNegativeFloat = 1.0
    """The factor on the channel's advantage, which is added to those of the others; 0 only where it is learnt."""
    learn: LearnedWeightConfig | None = None
    """Set: `weight` is where the factor begins, and it is learnt, so that a heuristic reward that misleads loses its
    say (BARFI). Each channel then costs a backward pass."""

    @model_validator(mode="after")
    def _a_fixed_weight_is_above_0(self) -> ChannelConfig:
        if not self.weight and self.learn is None:
            raise ValueError("weight: a channel of weight 0 changes nothing: leave it out, or set learn")
        return self


def channel_errors(advantage: AdvantageConfig, config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `config` that cannot work with the channels of `advantage`."""
    key, weights = "algorithm.advantage.channels", {each.known_as: each.weight for each in config.rewards}
    used = {name for channel in advantage.channels for name in channel.rewards}
    if advantage.baseline not in ("group", "batch") or not advantage.uses_total or advantage.row_facts:
        yield f"{key}: each is estimated as one reward is, and {advantage.name} does otherwise: choose grpo or dr_grpo"
    if advantage.turns is not None:
        yield f"{key}: each turn has its own advantage, which channels do not divide: leave one of the two out"
    for number, channel in enumerate(advantage.channels):
        for name in (*channel.rewards, *channel.among):
            if name not in weights:
                yield f"{key}.{number}: {name} is none of rewards ({', '.join(weights) or 'none is named'})"
        for name in channel.rewards:
            if weights.get(name) == 0:
                yield f"{key}.{number}: {name} has the weight 0 in rewards, so this channel would not compare it"
    for number, reward in enumerate(summed(config.rewards)):
        if reward.known_as not in used:
            yield f"rewards.{number}: {reward.known_as} is in no channel, so nothing would learn from it: weight 0"
        if reward.gate is not None or reward.counts_if is not None:
            yield f"rewards.{number}: gate and counts_if decide on the total, which {key} does not look at"
    if config.data.group_sampling.name == "dynamic":
        yield f"data.group_sampling: dynamic drops groups whose totals are equal, but {key} compares their parts"
    if config.scoring.renormalise:
        yield f"scoring.renormalise: {key} takes the rewards one by one, so there is no sum to scale: leave it out"
    if any(channel.learn for channel in advantage.channels):
        yield from _learned_weight_errors(advantage, config)


def _learned_weight_errors(advantage: AdvantageConfig, config: TrainConfig) -> Iterator[str]:
    key, data, training = "algorithm.advantage.channels", config.data, config.training
    if config.algorithm.objective != PLAIN_GRADIENT:
        name = config.algorithm.name
        yield f"algorithm.name: {key} with learn is for plain policy gradients, which {name} is not: choose grpo"
    if all(channel.learn for channel in advantage.channels):
        yield f"{key}: weights are learnt for the good of the channels without learn, and there is none"
    changed = {
        "data.replay": data.replay is not None,
        "data.demonstrations": data.demonstrations is not None,
        "data.weighting": data.weighting is not None,
        "data.starts": data.starts is not None,
        "data.group_sampling": data.group_sampling.name != "fixed",
        "run.overlap": config.run.overlap.is_on,
        "algorithm.kl.coef": bool(getattr(getattr(config.algorithm, "kl", None), "coef", 0)),
        "algorithm.mismatch": getattr(config.algorithm, "mismatch", None) is not None,
        "algorithm.advantage.trust": advantage.trust is not None,
        "algorithm.advantage.duration": advantage.duration is not None,
        "algorithm.advantage.extremes_threshold": advantage.extremes_threshold is not None,
        "rewards.at_least": bool(constrained(config.rewards)),
        "training.updates": training.updates * training.epochs != 1,
    }
    for name in (name for name, is_set in changed.items() if is_set):
        yield f"{name}: {key} with learn compares gradients of plain rollouts, one update for each: leave it out"
