"""From rewards to advantages, as the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms import (
    best_of_advantages,
    branch_advantages,
    broadcast_to_decisions,
    dr_grpo_advantages,
    gdpo_advantages,
    grpo_advantages,
    linear_best_of_advantages,
    max_rl_advantages,
    pareto_advantages,
    reinforce_pp_advantages,
    reward_weights,
    rloo_advantages,
)
from mmrl.config.algorithm import AdvantageConfig, BestOfConfig, ExponentialConfig
from mmrl.policy import Rollout
from mmrl.rewards.core.reward_aggregation import pareto_rank
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.training.rollouts.lagrangian import Constraints


@dataclass(frozen=True)
class AdvantageEstimator:
    """Advantages of trajectories and of decisions."""

    config: AdvantageConfig | BestOfConfig | ExponentialConfig
    weights: dict[str, float]  # of the rewards, by name
    constraints: Constraints | None = None  # rewards that are held above a threshold

    def advantages(self, output: RewardOutput, group_index: Tensor) -> Tensor:
        """[B] float32; 0 where the answer could not be scored. Where answers are imitated, how much each is."""
        group_index = group_index.cpu()
        total = torch.from_numpy(output.values["total"])
        if isinstance(self.config, BestOfConfig):
            return best_of_advantages(total, group_index, self.config.keep, self.config.min_value)
        if isinstance(self.config, ExponentialConfig):
            return reward_weights(total, group_index, self.config.temperature, self.config.normalise)
        if self.config.name == "gdpo":
            columns = torch.stack([torch.from_numpy(output.values[name]) for name in self.weights], dim=1)
            result = gdpo_advantages(columns, group_index, list(self.weights.values()), ddof=self.config.ddof)
        elif self.config.name == "pareto":
            result = self._pareto(output, group_index)
        else:
            result = self._of_one(self.config, total, group_index)
        if self.constraints is not None:
            config = self.config.model_copy(update={"name": "grpo"}) if self.config.name == "gdpo" else self.config
            result = self.constraints.blend(result, output, lambda each: self._of_one(config, each, group_index))
        return self.limited(result)

    def limited(self, advantages: Tensor) -> Tensor:
        """Within [-clip, clip], if the configuration says so."""
        clip = self.config.clip if isinstance(self.config, AdvantageConfig) else None
        return advantages if clip is None else advantages.clamp(-clip, clip)

    def _of_one(self, config: AdvantageConfig, values: Tensor, group_index: Tensor) -> Tensor:
        """[B], of one number an answer: the total, or a constraint."""
        match config.name:
            case "grpo" | "branch":
                return grpo_advantages(values, group_index, std=config.std, ddof=config.ddof)
            case "dr_grpo":
                return dr_grpo_advantages(values, group_index)
            case "rloo":
                return rloo_advantages(values, group_index)
            case "linear_best_of":
                return linear_best_of_advantages(values, group_index)
            case "max_rl":
                return max_rl_advantages(values, group_index)
            case "reinforce_pp":
                return reinforce_pp_advantages(values, group_index, baseline="batch", ddof=config.ddof)
        raise ValueError(f"{config.name} takes several rewards one by one, and was given their total")

    def _pareto(self, output: RewardOutput, group_index: Tensor) -> Tensor:
        """[B]."""
        used = {name: weight for name, weight in self.weights.items() if weight}
        columns = np.stack([output.values[name].astype(np.float64) for name in used], axis=1)
        front = pareto_rank(columns, list(used.values()), group_index.tolist()) == 0
        signed = torch.from_numpy((columns * np.sign(list(used.values()))).astype(np.float32))
        return pareto_advantages(signed, torch.from_numpy(front), group_index, [abs(w) for w in used.values()])

    def decisions(self, advantages: Tensor, mask: Tensor) -> Tensor:
        """[B, T] on the mask's device."""
        return broadcast_to_decisions(advantages.to(mask.device), mask)


# Credit for decisions that rows of a rollout share before they part.


def branch_credit(
    config: AdvantageConfig,
    rewards: Tensor,  # [R], NaN where a row takes no part
    group_index: Tensor,  # [R]
    rollouts: Sequence[Rollout],  # of R rows in all
) -> Tensor:  # [R, T]
    """What each decision deserves; 0 for those that another row stands for.

    A row that could not be scored is left out of the loss, and with it the shared decisions that it stands for.
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
