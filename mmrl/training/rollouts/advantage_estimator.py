"""From rewards to advantages of trajectories and decisions, by the configured estimator.

`PromptHistory` compares a reward with the earlier ones of its prompt; `DifficultyWeighting` weighs the advantages of a
group by the success rate of the current policy on its prompt.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.advantages import branch_advantages, broadcast_to_decisions
from mmrl.algorithms.groups import group_mean
from mmrl.algorithms.several_rewards import channel_advantages, pareto_advantages
from mmrl.checks import check_shapes
from mmrl.config.algorithms.advantage import AdvantageConfig, AnyAdvantageConfig, TrustConfig
from mmrl.config.data import Curve
from mmrl.config.section import Section
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_aggregation import pareto_rank
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rollout import Rollout
from mmrl.training.rollouts.lagrangian import Constraints

WITHOUT_SUCCESS = 0.25
"""The weight of a group without a good answer on the curve "hard" (VL-Cogito's `all_false_coff`)."""
FILTERS: Mapping[str, tuple[float, float]] = {
    "easy_only": (0.5, 1.0),
    "medium_only": (0.25, 0.75),
    "hard_only": (0.0, 0.5),
}
"""The lowest and the highest success rate of the groups that a filter keeps, which have a good answer."""


@dataclass(frozen=True)
class AdvantageEstimator:
    """The advantages of trajectories and of single decisions, by the estimator that is configured."""

    config: AnyAdvantageConfig
    weights: dict[str, float]  # of the rewards, by name
    constraints: Constraints | None = None  # rewards that are held above a threshold

    def advantages(
        self, output: RewardOutput, group_index: Tensor, facts: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return [B] float32; 0 where the answer could not be scored. For imitation, the weight of each answer.

        `facts` are the `row_facts` of the configured estimator, [B] each.
        """
        group_index, config = group_index.cpu(), self.config
        if isinstance(config, AdvantageConfig) and not config.uses_total:
            rewards = torch.stack([torch.from_numpy(output.values[name]) for name in self.weights], dim=1)
            result = config.estimate_several(rewards, list(self.weights.values()), group_index)
        elif isinstance(config, AdvantageConfig) and config.channels:
            result = self._of_channels(config, output, group_index)
        elif isinstance(config, AdvantageConfig):
            result = config.estimate_from(torch.from_numpy(output.values["total"]), group_index, facts or {})
        else:
            result = config.estimate(torch.from_numpy(output.values["total"]), group_index)
        if self.constraints is not None:
            result = self.constraints.blend(result, output, lambda each: config.estimate(each, group_index))
        result = self.limited(result)
        if isinstance(config, AdvantageConfig) and config.trust is not None:
            result = result * trust_factors(config.trust, output)
        return result

    def parts(self, output: RewardOutput, group_index: Tensor) -> Tensor | None:
        """Return [C, B] the advantages of each channel by itself; None unless the weight of one is learnt."""
        config = self.config
        if not isinstance(config, AdvantageConfig) or not any(channel.learn for channel in config.channels):
            return None
        alone = [
            config.model_copy(update={"channels": (each.model_copy(update={"weight": 1.0}),)})
            for each in config.channels
        ]
        return torch.stack([self.limited(self._of_channels(each, output, group_index.cpu())) for each in alone])

    def _of_channels(self, config: AdvantageConfig, output: RewardOutput, group_index: Tensor) -> Tensor:
        values, taking_part = [], []
        for channel in config.channels:
            parts = [self.weights[name] * torch.from_numpy(output.values[name]) for name in channel.rewards]
            values.append(torch.stack(parts).sum(0))
            part = torch.ones(len(group_index), dtype=torch.bool)
            for name, value in channel.among.items():
                part &= torch.from_numpy(output.values[name] >= np.float32(value))
            taking_part.append(part)
        return channel_advantages(
            values, taking_part, [each.weight for each in config.channels], group_index, config.estimate
        )

    def limited(self, advantages: Tensor) -> Tensor:
        """Return the advantages within [-clip, clip], if the configuration has a clip."""
        clip = self.config.clip if isinstance(self.config, AdvantageConfig) else None
        return advantages if clip is None else advantages.clamp(-clip, clip)

    def decisions(self, advantages: Tensor, mask: Tensor) -> Tensor:
        """Return [B, T] on the mask's device."""
        return broadcast_to_decisions(advantages.to(mask.device), mask)


def trust_factors(config: TrustConfig, output: RewardOutput) -> Tensor:  # [B] float32
    """Return exp(offset - rate * bound) of each answer; 0 where the bound is not known.

    Raises:
        ConfigError: no reward gives the score.
    """
    if config.score not in output.values:
        known = ", ".join(sorted(output.values))
        raise ConfigError(f"algorithm.advantage.trust.score: no reward gives {config.score!r}; there are {known}")
    bounds = torch.from_numpy(output.values[config.score])
    return (config.offset - config.rate * bounds).exp().nan_to_num(0.0)


def pareto_front_advantages(
    rewards: Tensor,  # [B, R]
    weights: Sequence[float],  # R of them; below 0 where lower values are better
    group_index: Tensor,  # [B]
    front: Literal["group", "batch"] = "group",
    centred: bool = False,
) -> Tensor:  # [B]
    """Return the advantages of answers that no other of their group, or of the batch, dominates; 0 for the others.

    `centred` subtracts the mean of each group's scored answers.
    """
    used = [column for column, weight in enumerate(weights) if weight]
    columns, signs = rewards[:, used].double().numpy(), np.sign([weights[each] for each in used])
    sizes = [weights[each] for each in used]
    compared = group_index if front == "group" else torch.zeros_like(group_index)
    on_front = torch.from_numpy(pareto_rank(columns, sizes, compared.tolist()) == 0)
    signed = torch.from_numpy((columns * signs).astype(np.float32))
    result = pareto_advantages(signed, on_front, compared, [abs(size) for size in sizes])
    if not centred:
        return result
    scored = signed.isfinite().all(1)
    mean = group_mean(result.where(scored, torch.nan), group_index)
    return (result - mean).where(scored, 0.0)


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


def build_history(config: Section | None) -> PromptHistory | None:
    """Build the history of `algorithm.advantage`; None where advantages are relative to something else."""
    if not isinstance(config, AdvantageConfig) or config.baseline != "history":
        return None
    return PromptHistory(config.history.buffer, config.history.min_count)


class PromptHistory:
    """The last rewards of each prompt, by its id, as in DDPO (arXiv:2305.13301).

    A new answer is compared with earlier answers to the prompt, so groups are not needed. Until a prompt has
    `min_count` rewards, its answers are compared with the batch.
    """

    def __init__(self, buffer: int, min_count: int) -> None:
        self._buffer, self._min_count = buffer, min_count
        self._rewards: dict[str, deque[float]] = {}

    def advantages(self, rewards: Tensor, ids: Sequence[str]) -> Tensor:  # [B] -> [B]; 0 where unscored
        """Return (reward - mean) / (std + 1e-6) over the rewards of the prompt, new ones included."""
        scored = rewards.isfinite()
        for reward, id, known in zip(rewards.tolist(), ids, scored.tolist(), strict=True):
            if known:
                self._rewards.setdefault(id, deque(maxlen=self._buffer)).append(reward)
        batch = rewards[scored].double()
        result = torch.zeros(len(rewards), dtype=torch.float64)
        for row, id in enumerate(ids):
            if scored[row]:
                own = torch.tensor(list(self._rewards[id]), dtype=torch.float64)
                compared = own if len(own) >= self._min_count else batch
                if compared.max() > compared.min():  # equal numbers differ from their mean by rounding alone
                    result[row] = (rewards[row].double() - compared.mean()) / (compared.std(correction=0) + 1e-6)
        return result.float()

    def state_dict(self) -> dict[str, list[float]]:
        """Return the rewards, oldest first; floats survive JSON exactly."""
        return {id: list(rewards) for id, rewards in self._rewards.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rewards = {id: deque(rewards, maxlen=self._buffer) for id, rewards in state.items()}


@dataclass(frozen=True)
class DifficultyWeighting:
    """A weighting by curves, each of which applies to an equal part of training."""

    stages: Sequence[Curve]
    success: float  # a total of at least this is a good answer

    def weights(
        self,
        total: Tensor,  # [R] float; NaN = could not be scored
        group_index: Tensor,  # [R] int64
        progress: float,  # share of training that is done, in [0, 1]
    ) -> Tensor:  # [R] float32, in [0, 1]; 0 where nothing of the group is scored
        """Return the factor on the advantages of each row."""
        good = (total >= self.success).to(torch.float32).where(total.isfinite(), math.nan)
        rate = group_mean(good, group_index)
        return difficulty_weights(rate, self.stage(progress)).where(rate.isfinite(), 0.0)

    def stage(self, progress: float) -> Curve:
        """Return the curve at a point of training, `progress` in [0, 1]."""
        return self.stages[min(int(progress * len(self.stages)), len(self.stages) - 1)]


def difficulty_weights(
    rate: Tensor,  # [R] float in [0, 1]; the share of good answers to the prompt
    curve: Curve,
) -> Tensor:  # [R] float in [0, 1]
    """Return weights by success rate p.

    `easy`, `medium` and `hard` are the three stages of VL-Cogito's ODSW (arXiv:2507.22607; alibaba-damo-academy/
    VL-Cogito verl/trainer/ray_trainer.py@daa44ac, `r1v_cir_weight_all`, s_3, s_2 and s_1): sin(pi p), which is 1 at a
    half and 0 at the ends, but 1 above a half in `easy`, and in `hard` 1 up to a half and 0.25 at 0. Its filters h_3,
    h_2 and h_1 are 1 or 0: `easy_only` from a half on, `medium_only` from a quarter to three quarters, `hard_only`
    above 0 and up to a half. `parabola` is Observe-R1's 4p(1 - p) (arXiv:2505.12432; zrguo/Observe-R1
    experience_maker.py@418547a, with its coefficient at 1).

    >>> difficulty_weights(torch.tensor([0.0, 0.25, 0.5, 1.0]), "hard")
    tensor([0.2500, 1.0000, 1.0000, 0.0000])
    """
    check_shapes("R", rate=rate)
    if curve == "parabola":
        return 4 * rate * (1 - rate)
    if curve in FILTERS:
        lowest, highest = FILTERS[curve]
        return ((rate > 0) & (rate >= lowest) & (rate <= highest)).to(rate.dtype)
    arch = torch.sin(math.pi * rate).clamp(min=0).where((rate > 0) & (rate < 1), 0.0)
    if curve == "easy":
        return arch.where(rate <= 0.5, 1.0)
    if curve == "hard":
        return arch.where(rate > 0.5, torch.ones_like(rate).where(rate > 0, WITHOUT_SUCCESS))
    return arch
