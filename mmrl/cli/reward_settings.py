"""Parse rewards, their weights and their arguments from command-line options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer

RewardArgs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--arg", "-a", metavar="REWARD.KEY=VALUE", help="A reward's setting: judge.model=m; repeatable."),
]
"""The option that sets rewards: see `reward_settings`."""


def reward_settings(rewards: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {reward: its arguments} from texts like judge.model=m; a reward of a file has the name after the colon.

    Raises:
        ConfigError: A text begins with no reward's name, or sets a key twice.
    """
    from mmrl.config import ConfigError
    from mmrl.config.loading.overrides import check_set_once, parse_override

    names = {name.rpartition(":")[2]: name for name in rewards}
    settings: dict[str, dict[str, Any]] = {name: {} for name in rewards}
    for text in texts:
        path, value = parse_override(text)
        if len(path) < 2 or path[0] not in names:
            raise ConfigError(
                f"--arg {text}: must begin with a reward and the name of a setting, as "
                f"{next(iter(names), 'reward')}.key=value; the rewards are {', '.join(names) or 'none'}"
            )
        place = settings[names[str(path[0])]]
        for key in path[1:-1]:
            place = place.setdefault(str(key), {})
            if not isinstance(place, dict):
                raise ConfigError(f"--arg {text}: {key} has a value already, and cannot have keys")
        place[str(path[-1])] = value
    check_set_once(texts)
    return settings


def weighted_rewards(texts: Sequence[str], option: str, unset: float | None = None) -> dict[str, float]:
    """Return {reward: weight} from texts like clip_score=2.0; `unset` is the weight of a reward without one.

    Raises:
        ConfigError: A text has no number and `unset` is None, or a reward occurs twice.
    """
    from mmrl.config import ConfigError

    weights: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals:
            name = text
        try:
            weight = float(number) if equals else unset
        except ValueError:
            weight = None
        if weight is None or not name:
            raise ConfigError(f"{option} {text}: expected a reward and a number, as in {option} clip_score=2.0")
        if name in weights:
            raise ConfigError(f"{option} {text}: {name} occurs twice")
        weights[name] = weight
    return weights
