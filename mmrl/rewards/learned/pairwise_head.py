"""Pairwise judges: heads that see both answers at once, and rewards in the same form (Pairwise-RL, arXiv:2504.04950).

A Bradley-Terry score is known up to a number that may differ for each prompt, since pairs compare answers to one
prompt. The probability of a win has no such freedom: it means the same for every prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.config.reward_model import RewardTrainingConfig
from mmrl.rewards.learned.head_training import JudgedPairs, batches, new_head, optimise
from mmrl.rewards.learned.preference_losses import preference_loss
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead


def pairwise_logits(head: ScoreHead, first: Tensor, second: Tensor) -> Tensor:  # [P, F] each; [P]
    """Return the log-odds that the first answer is better, from a head on 2 F features.

    They are half the difference of both orders, so a swap turns the sign and no place is preferred.
    """
    check_shapes("P F", check_shapes("P F", first=first), second=second)
    forth, back = head(torch.cat([first, second], 1))[0], head(torch.cat([second, first], 1))[0]
    logits: Tensor = (forth - back)[:, 0] / 2
    return logits


def train_pairwise_head(pairs: JudgedPairs, hidden: int, settings: RewardTrainingConfig, seed: int) -> ScoreHead:
    """Return a pairwise judge that was trained on the first axis of pairs; equal seeds give equal heads.

    Raises:
        ValueError: there is no hidden layer: a linear head on both answers is a difference of two scores.
    """
    if not hidden:
        raise ValueError("a pairwise judge needs a hidden layer: set hidden above 0")
    head = new_head(HeadShape(features=2 * pairs.chosen.shape[1], hidden=hidden), seed)

    def loss(rows: Tensor) -> Tensor:
        some = pairs.select(rows)
        side = some.sides[:, 0]
        decided = side != 0
        logits = pairwise_logits(head, some.chosen, some.rejected) * side
        return preference_loss(logits[decided]).sum() / decided.sum().clamp(min=1)

    optimise(head, loss, batches(len(pairs), settings, seed), settings)
    return head


def win_rates(head: ScoreHead, answers: Tensor) -> Tensor:  # [G, F] of answers to one prompt; [G]
    """Return the mean probability of each answer to win against the others; a half on average.

    Raises:
        ValueError: there is only one answer.
    """
    count = check_shapes("G F", answers=answers)["G"]
    if count < 2:
        raise ValueError("one answer alone can win against no other")
    rows, columns = torch.meshgrid(torch.arange(count), torch.arange(count), indexing="ij")
    logits = pairwise_logits(head, answers[rows.flatten()], answers[columns.flatten()])
    chances = logits.sigmoid().view(count, count)
    return (chances.sum(1) - chances.diagonal()) / (count - 1)
