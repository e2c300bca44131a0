"""Lagrangian constraints: keep the mean of some rewards above a threshold while others are maximised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.several_rewards import dual_ascent, lagrangian_advantages
from mmrl.errors import RunError
from mmrl.rewards.core.reward_io import RewardOutput


@dataclass(frozen=True)
class Constraint:
    """A constraint: the mean of a reward over an iteration must reach a threshold."""

    name: str
    at_least: float
    start: float = 0.0  # of its multiplier
    rate: float = 0.1  # the step size of dual ascent
    most: float = 5.0  # upper bound of the multiplier


@dataclass
class Constraints:
    """Constraints with their multipliers, which follow by dual ascent (MVC-ZigAL, arXiv:2505.20107)."""

    each: Sequence[Constraint]
    multipliers: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.multipliers = {one.name: one.start for one in self.each}

    def blend(self, objective: Tensor, output: RewardOutput, advantages_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Return [B] advantages: the objective's plus those of each constraint times its multiplier.

        `advantages_of` maps [B] rewards to [B] advantages. A row without a value of a constraint has 0 of it.
        """
        columns = [advantages_of(torch.from_numpy(output.values[one.name])) for one in self.each]
        return lagrangian_advantages(objective, columns, [self.multipliers[one.name] for one in self.each])

    def update_multipliers(self, output: RewardOutput) -> dict[str, float]:
        """Update the multipliers with the means of an iteration; a multiplier without any value stays.

        Metrics: `multiplier/NAME`, before the update, and `slack/NAME`, the mean minus the threshold.
        """
        metrics: dict[str, float] = {}
        for one in self.each:
            values = output.values[one.name]
            known = values[np.isfinite(values)]
            metrics[f"multiplier/{one.name}"] = self.multipliers[one.name]
            if known.size:
                mean = float(known.mean(dtype=np.float64))
                metrics[f"slack/{one.name}"] = mean - one.at_least
                moved = dual_ascent(self.multipliers[one.name], mean, one.at_least, one.rate, one.most)
                self.multipliers[one.name] = moved
        return metrics

    def state_dict(self) -> dict[str, float]:
        """Return the multipliers."""
        return dict(self.multipliers)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            RunError: the saved multipliers belong to other rewards.
        """
        if state.keys() != self.multipliers.keys():
            raise RunError(
                f"the checkpoint's multipliers are of {', '.join(sorted(state)) or 'no reward'}, and the constrained "
                f"rewards are {', '.join(sorted(self.multipliers))}"
            )
        self.multipliers = {name: float(value) for name, value in state.items()}
