"""From rewards to advantages of trajectories and decisions, by the configured estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms import branch_advantages, broadcast_to_decisions, pareto_advantages
from mmrl.config.algorithms.advantage import AdvantageConfig, AnyAdvantageConfig
from mmrl.policy import Rollout
from mmrl.rewards.core.reward_aggregation import pareto_rank
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.training.rollouts.lagrangian import Constraints


@dataclass(frozen=True)
class AdvantageEstimator:
    """The advantages of trajectories and of single decisions, by the estimator that is configured."""

    config: AnyAdvantageConfig
    weights: dict[str, float]  # of the rewards, by name
    constraints: Constraints | None = None  # rewards that are held above a threshold

    def advantages(self, output: RewardOutput, group_index: Tensor) -> Tensor:
        """Return [B] float32; 0 where the answer could not be scored. For imitation, the weight of each answer."""
        group_index, config = group_index.cpu(), self.config
        if isinstance(config, AdvantageConfig) and not config.uses_total:
            rewards = torch.stack([torch.from_numpy(output.values[name]) for name in self.weights], dim=1)
            result = config.estimate_several(rewards, list(self.weights.values()), group_index)
        else:
            result = config.estimate(torch.from_numpy(output.values["total"]), group_index)
        if self.constraints is not None:
            result = self.constraints.blend(result, output, lambda each: config.estimate(each, group_index))
        return self.limited(result)

    def limited(self, advantages: Tensor) -> Tensor:
        """Return the advantages within [-clip, clip], if the configuration has a clip."""
        clip = self.config.clip if isinstance(self.config, AdvantageConfig) else None
        return advantages if clip is None else advantages.clamp(-clip, clip)

    def decisions(self, advantages: Tensor, mask: Tensor) -> Tensor:
        """Return [B, T] on the mask's device."""
        return broadcast_to_decisions(advantages.to(mask.device), mask)


def pareto_front_advantages(
    rewards: Tensor,  # [B, R]
    weights: Sequence[float],  # R of them; below 0 where lower values are better
    group_index: Tensor,  # [B]
) -> Tensor:  # [B]
    """Return the advantages of answers that no other of their group dominates; 0 for the others."""
    used = [column for column, weight in enumerate(weights) if weight]
    columns, signs = rewards[:, used].double().numpy(), np.sign([weights[each] for each in used])
    sizes = [weights[each] for each in used]
    front = pareto_rank(columns, sizes, group_index.tolist()) == 0
    signed = torch.from_numpy((columns * signs).astype(np.float32))
    return pareto_advantages(signed, torch.from_numpy(front), group_index, [abs(size) for size in sizes])


def branch_credit(
    config: AdvantageConfig,
    rewards: Tensor,  # [R], NaN where a row takes no part
    group_index: Tensor,  # [R]
    rollouts: Sequence[Rollout],  # of R rows in all
) -> Tensor:  # [R, T]
    """Return the advantage of each decision of rows that branch; 0 for decisions that another row stands for.

    A row that could not be scored is left out of the loss, and with it the shared decisions that it stands for.

    Raises:
        ValueError: no rows branch.
    """
    shared = shared_rows(rollouts)
    if shared is None:
        raise ValueError("algorithm.advantage.name branch needs rollouts whose rows branch (sampling.branch)")
    return branch_advantages(rewards, group_index, shared[:, 1:], std=config.std, ddof=config.ddof)


def shared_rows(rollouts: Sequence[Rollout]) -> Tensor | None:
    """[R, T + 1] the `branches` of all rollouts on the CPU, rows counted over all of them; None if there are none."""
    parts, before = [], 0
    for rollout in rollouts:
        if rollout.branches is None:
            return None
        parts.append(rollout.branches.cpu() + before)
        before += rollout.rows
    return torch.cat(parts)
