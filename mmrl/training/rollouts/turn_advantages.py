"""Advantages of single turns, from the rewards that an environment gave for them and from the outcome."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.algorithms.turn_credit import at_last_turn, turn_groups, turn_returns
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.policy import EpisodeRecord, Rollout


def turn_rewards(
    rollouts: Sequence[Rollout], weights: dict[str, float]
) -> tuple[Tensor, Tensor]:  # [R, K] float32, [R, K] bool
    """Return the weighted sum of the rewards of each turn, and which turns each row has.

    Args:
        rollouts: of R rows in all; a row without an episode has one turn without rewards.
        weights: of the rewards by name; empty: 1 for each.
    """
    episodes: list[EpisodeRecord | None] = []
    for rollout in rollouts:
        episodes += [None] * rollout.rows if rollout.episodes is None else rollout.episodes
    counts = [1 if episode is None else len(episode.texts) for episode in episodes]
    rewards = torch.zeros(len(episodes), max(counts, default=1))
    for row, episode in enumerate(episodes):
        for event in () if episode is None else episode.events:
            rewards[row, event.turn] += event.value * (weights.get(event.name, 0.0) if weights else 1.0)
    return rewards, torch.arange(rewards.shape[1]) < torch.tensor(counts)[:, None]


def turn_advantages(
    config: AdvantageConfig,
    advantages: Tensor,  # [R] of the outcome
    total: Tensor,  # [R]; NaN = could not be scored, or outside the baseline
    group_index: Tensor,  # [R]
    rollouts: Sequence[Rollout],  # of R rows in all
) -> Tensor:  # [R, K]; 0 where unscored
    """Return the advantage of each turn: returns compared over the rows of a group at one and the same turn.

    Raises:
        ValueError: `config` has no settings for turns.
    """
    credit = config.turns
    if credit is None:
        raise ValueError("algorithm.advantage.turns is not set")
    rewards, present = turn_rewards(rollouts, credit.rewards)
    known = rewards.where(total.isfinite()[:, None], torch.nan)
    if credit.outcome == "returned":
        known = credit.weight * known + at_last_turn(total, present)
    returns = turn_returns(known, present, credit.discount)
    groups = turn_groups(group_index, returns.shape[1])
    by_turn = config.estimate(returns.flatten(), groups.flatten()).view_as(returns)
    by_turn = by_turn.where(returns.isfinite(), 0.0)
    if credit.outcome == "returned":
        return by_turn
    return (advantages[:, None] + credit.weight * by_turn).where(present, 0.0)
