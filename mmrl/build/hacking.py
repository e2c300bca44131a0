"""Build the gauge of reward hacking that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmrl.build.reward_suites import Rewards
from mmrl.config.rewards import REMOTE, RewardConfig, summed
from mmrl.config.train import TrainConfig
from mmrl.rewards.core.registry import reward_class
from mmrl.rewards.core.reward import spec_of
from mmrl.rewards.core.reward_io import RewardSpec
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.hacking_gauge import HackingGauge


def build_hacking_gauge(config: TrainConfig, rewards: Rewards | None = None) -> HackingGauge | None:
    """Return the gauge, or None without `training.hacking`; of a service's reward, `rewards` know the direction."""
    settings = config.training.hacking
    if settings is None:
        return None
    measured = [each for each in _measured(config) if not settings.measured or _name(each) in settings.measured]
    specs = _specs(config, rewards)
    return HackingGauge(settings, _signs(summed(config.rewards), specs), _signs(measured, specs))


def hacking_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `training.hacking` with which it could find nothing."""
    settings = config.training.hacking
    if settings is None:
        return
    if config.algorithm.experience != "rollouts":
        yield f"training.hacking: {config.algorithm.name} samples and scores nothing as it trains: leave it out"
        return
    measured = [_name(reward) for reward in _measured(config)]
    if not measured:
        yield "training.hacking: no reward is measured: give one that is not trained on the weight 0"
    elif unknown := [name for name in settings.measured if name not in measured]:
        yield f"training.hacking.measured: {unknown[0]} is no reward of weight 0; there are {', '.join(measured)}"
    if not summed(config.rewards):
        yield "training.hacking: no reward has a weight, so none is trained on: leave it out"
    if 2 * settings.window > config.training.iterations:
        yield (
            f"training.hacking.window: two windows of {settings.window} iterations do not fit into "
            f"training.iterations, {config.training.iterations}: choose a smaller one"
        )
    if settings.then == "refresh" and not any(reward_class(reward.name).learns for reward in config.rewards):
        yield "training.hacking.then: no reward learns, so none can be refreshed: take cotrained, or warn or stop"


def _measured(config: TrainConfig) -> list[RewardConfig]:
    return [reward for reward in config.rewards if reward.weight == 0 and reward.at_least is None]


def _specs(config: TrainConfig, rewards: Rewards | None) -> dict[str, RewardSpec]:
    """Return the card of each reward, of a loaded one as it is, by the name that the recipe knows it by."""
    known = {each.known_as: spec_of(reward_class(each.name)) for each in config.rewards}
    if not isinstance(rewards, RewardSuite):
        return known
    return known | {each.known_as: part.reward.spec for each, part in zip(config.rewards, rewards.parts, strict=True)}


def _signs(rewards: list[RewardConfig], specs: Mapping[str, RewardSpec]) -> dict[str, int]:
    """Return by name 1 where more is better, else -1."""
    signs = {}
    for reward in rewards:
        own = specs[reward.known_as]
        signs[own.name] = own.sign if reward.weight >= 0 else -own.sign
    return signs


def _name(reward: RewardConfig) -> str:
    return reward.known_as if reward.name == REMOTE else spec_of(reward_class(reward.name)).name
