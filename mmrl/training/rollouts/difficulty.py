"""Difficulty weighting: the weight of a group by the success rate of the current policy on its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_mean
from mmrl.checks import check_shapes
from mmrl.config.data import Curve

WITHOUT_SUCCESS = 0.25
"""The weight of a group without a good answer on the curve "hard" (VL-Cogito's `all_false_coff`)."""


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
    half and 0 at the ends, but 1 above a half in `easy`, and in `hard` 1 up to a half and 0.25 at 0. `parabola` is
    Observe-R1's 4p(1 - p) (arXiv:2505.12432; zrguo/Observe-R1 experience_maker.py@418547a, with its coefficient at 1).

    >>> difficulty_weights(torch.tensor([0.0, 0.25, 0.5, 1.0]), "hard")
    tensor([0.2500, 1.0000, 1.0000, 0.0000])
    """
    check_shapes("R", rate=rate)
    if curve == "parabola":
        return 4 * rate * (1 - rate)
    arch = torch.sin(math.pi * rate).clamp(min=0).where((rate > 0) & (rate < 1), 0.0)
    if curve == "easy":
        return arch.where(rate <= 0.5, 1.0)
    if curve == "hard":
        return arch.where(rate > 0.5, torch.ones_like(rate).where(rate > 0, WITHOUT_SUCCESS))
    return arch
