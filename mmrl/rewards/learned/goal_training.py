"""Heads that also score what is half made: goal-conditioned reward models (arXiv:2407.13887).

An answer comes about in states: previews of a picture that is being denoised, beginnings of a text. A head learns from
pairs of finished answers, and besides that a state of the better answer is near to a later state of the same answer,
and far from the states of the worse one. Near is the cosine of what the last layer sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mmrl.checks import check_shapes
from mmrl.config.reward_model import GoalConfig, RewardTrainingConfig
from mmrl.rewards.learned.head_training import batches, new_head, optimise
from mmrl.rewards.learned.preference_losses import preference_loss
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead
from mmrl.seeds import fold_in

GOAL_STREAM = 8
"""The number of the random stream that draws states."""


@dataclass(frozen=True)
class JudgedCourses:
    """P pairs of answers as features of their S states, of which the last is the finished answer."""

    chosen: Tensor
    """[P, S, F]"""
    rejected: Tensor
    """[P, S, F]"""

    def __post_init__(self) -> None:
        sizes = check_shapes("P S F", check_shapes("P S F", chosen=self.chosen), rejected=self.rejected)
        if sizes["S"] < 2:
            raise ValueError("a goal is a later state: answers need two states or more")

    def __len__(self) -> int:
        return len(self.chosen)


def goal_contrast_loss(
    state: Tensor,  # [B, H] of the better answer
    goal: Tensor,  # [B, H] of a later state of the same answer
    other: Tensor,  # [B, H] of any state of the worse answer
) -> Tensor:  # [B]
    """Return -log sigmoid(cos(state, goal)) - log sigmoid(-cos(state, other)).

    >>> goal_contrast_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([1.3863])
    """
    sizes = check_shapes("B H", state=state)
    check_shapes("B H", check_shapes("B H", sizes, goal=goal), other=other)
    near = functional.cosine_similarity(state, goal, dim=1)
    far = functional.cosine_similarity(state, other, dim=1)
    return -functional.logsigmoid(near) - functional.logsigmoid(-far)


def train_goal_head(
    courses: JudgedCourses, shape: HeadShape, settings: RewardTrainingConfig, goals: GoalConfig, seed: int
) -> ScoreHead:
    """Return a head that was trained on pairs and on their states; with a weight of 0 on finished answers alone.

    Raises:
        ValueError: the head is linear, so its last layer sees nothing that could be learnt.
    """
    if not shape.hidden and goals.weight:
        raise ValueError("goals need a hidden layer: set head.hidden above 0")
    head = new_head(shape, seed)
    last = courses.chosen.shape[1] - 1
    chance = torch.Generator().manual_seed(fold_in(seed, GOAL_STREAM))

    def loss(rows: Tensor) -> Tensor:
        better, worse = courses.chosen[rows], courses.rejected[rows]
        total = preference_loss((head(better[:, last])[0] - head(worse[:, last])[0])[:, 0]).mean()
        if not goals.weight:
            return total
        now = torch.randint(last, (len(rows),), generator=chance)
        later = now + 1 + (torch.rand(len(rows), generator=chance) * (last - now)).long()
        apart = torch.randint(last + 1, (len(rows),), generator=chance)
        each = torch.arange(len(rows))
        states = (head.represent(course[each, place]) for course, place in
                  ((better, now), (better, later), (worse, apart)))  # fmt: skip
        return total + goals.weight * goal_contrast_loss(*states).mean()

    optimise(head, loss, batches(len(courses), settings, seed), settings)
    return head
