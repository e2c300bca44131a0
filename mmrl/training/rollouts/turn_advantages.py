"""Advantages of single turns, from the rewards that an environment gave for them and from the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmrl.algorithms.turn_credit import at_last_turn, kind_groups, potential_rewards, turn_groups, turn_returns
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.errors import RunError
from mmrl.rollout import EpisodeRecord, Rollout

ANY_TURN = "any"
"""The value of `compared_by` that compares a turn with all turns of its group."""


def turn_rewards(
    rollouts: Sequence[Rollout], weights: Mapping[str, float] | None, but: str | None = None
) -> tuple[Tensor, Tensor]:  # [R, K] float32, [R, K] bool
    """Return the weighted sum of the rewards of each turn, and which turns each row has.

    Args:
        rollouts: of R rows in all; a row without an episode has one turn without rewards.
        weights: of the rewards by name; None or empty: 1 for each.
        but: the name of a reward that does not count.
    """
    episodes = _episodes(rollouts)
    counts = [1 if episode is None else len(episode.texts) for episode in episodes]
    rewards = torch.zeros(len(episodes), max(counts, default=1))
    for row, episode in enumerate(episodes):
        for event in () if episode is None else episode.events:
            if event.name != but:
                rewards[row, event.turn] += event.value * (weights.get(event.name, 0.0) if weights else 1.0)
    return rewards, torch.arange(rewards.shape[1]) < torch.tensor(counts)[:, None]


def potentials_before(rollouts: Sequence[Rollout], name: str) -> Tensor:  # [R, K] float32
    """Return the potential of the state before each turn: the turn reward `name` of the turn before; 0 at first.

    Raises:
        RunError: the environment gives no such reward.
    """
    after = named_rewards(rollouts, name, "potential")
    return torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)


def broken_turns(rollouts: Sequence[Rollout], name: str) -> Tensor:  # [R, K] bool
    """Return the turns whose reward `name` is 0 or missing.

    Raises:
        RunError: the environment gives no such reward.
    """
    return named_rewards(rollouts, name, "broken_by") == 0


def named_rewards(rollouts: Sequence[Rollout], name: str, key: str) -> Tensor:  # [R, K] float32
    """Return the turn rewards of one name; `key` of `algorithm.advantage.turns` names it.

    Raises:
        RunError: the environment gives no such reward.
    """
    names = {event.name for episode in _episodes(rollouts) if episode is not None for event in episode.events}
    if name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise RunError(
            f"algorithm.advantage.turns.{key}: the environment gives no turn reward {name!r}: it gives {known}"
        )
    return turn_rewards(rollouts, {name: 1.0})[0]


def measured_values(rollouts: Sequence[Rollout], name: str) -> Tensor:  # [R, K] float32; 0 where there is none
    """Return what the environment measured of each turn, by name.

    Raises:
        RunError: it measures no such value.
    """
    episodes = _episodes(rollouts)
    known = {each for episode in episodes if episode is not None for info in episode.info for each in info}
    if name not in known:
        raise RunError(
            f"algorithm.advantage.turns.compared_by: the environment measures no {name!r} of a turn: it measures "
            f"{', '.join(sorted(known)) or 'nothing'}"
        )
    values = torch.zeros(len(episodes), max((1 if each is None else len(each.texts) for each in episodes), default=1))
    for row, episode in enumerate(episodes):
        for turn, info in enumerate(() if episode is None else episode.info):
            values[row, turn] = info.get(name, 0.0)
    return values


def turn_advantages(
    config: AdvantageConfig,
    advantages: Tensor,  # [R] of the outcome
    total: Tensor,  # [R]; NaN = could not be scored, or outside the baseline
    group_index: Tensor,  # [R]
    rollouts: Sequence[Rollout],  # of R rows in all
) -> Tensor:  # [R, K]; 0 where unscored
    """Return the advantage of each turn: returns compared over the rows of a group at one turn, or at turns of a kind.

    Raises:
        ValueError: `config` has no settings for turns.
        RunError: the environment does not give a turn reward, or measure a value, that `config` names.
    """
    credit = config.turns
    if credit is None:
        raise ValueError("algorithm.advantage.turns is not set")
    shaping = credit.potential
    rewards, present = turn_rewards(rollouts, credit.rewards, but=None if shaping is None else shaping.reward)
    known = rewards.where(total.isfinite()[:, None], torch.nan)
    if credit.outcome != "added":
        known = credit.weight * known + at_last_turn(total, present)
    if shaping is not None:
        potentials = shaping.weight * potentials_before(rollouts, shaping.reward)
        known = known + potential_rewards(potentials, present, credit.discount)
    broken = None if credit.broken_by is None else broken_turns(rollouts, credit.broken_by)
    returns = turn_returns(known, present, credit.discount, broken)
    if credit.compared_by is None:
        groups = turn_groups(group_index, returns.shape[1])
    elif credit.compared_by == ANY_TURN:
        groups = kind_groups(group_index, torch.zeros_like(returns))
    else:
        groups = kind_groups(group_index, measured_values(rollouts, credit.compared_by))
    by_turn = config.estimate(returns.flatten(), groups.flatten()).view_as(returns)
    by_turn = by_turn.where(returns.isfinite(), 0.0)
    if credit.outcome == "returned":
        return by_turn
    weight = credit.weight if credit.outcome == "added" else 1.0  # else the rewards have their weight already
    return (advantages[:, None] + weight * by_turn).where(present, 0.0)


def _episodes(rollouts: Sequence[Rollout]) -> list[EpisodeRecord | None]:  # R
    found: list[EpisodeRecord | None] = []
    for rollout in rollouts:
        found += [None] * rollout.rows if rollout.episodes is None else rollout.episodes
    return found
