"""Doubtful labels of preference pairs, found by the votes of several models (Secrets of RLHF II, arXiv:2401.06080).

The strength of a pair is the mean gap that the models give it: below 0 they disagree with its label, near 0 the two
answers are about equal, far above 0 the label is clear.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.checks import check_shapes


@dataclass(frozen=True)
class JudgedLabels:
    """The labels of P pairs after a vote."""

    smoothing: Tensor
    """[P] probability that a label is wrong; 1 flips it."""
    margin: Tensor
    """[P] gap that the loss asks for, at least 0."""
    kept: Tensor
    """[P] bool; False for pairs that are left out."""


def judge_labels(
    strength: Tensor,  # [P] mean gap over models
    flip: float = 0.0,  # largest share of all pairs whose labels are flipped
    soften: float = 0.0,  # share of the others, those of least strength, whose labels are softened
    drop: float = 0.0,  # share of the others, those of least strength, that are left out
    margin: float = 0.0,  # factor of the strength of clear pairs in their margin
) -> JudgedLabels:
    """Flip the labels that models contradict most, soften or leave out doubtful ones, and set margins of clear ones.

    Only pairs of negative strength are flipped. A softened label is wrong with probability sigmoid(-|strength|), so one
    that models are sure of stays. A margin is the absolute strength times `margin`, but 0 for softened pairs.

    >>> judged = judge_labels(torch.tensor([-3.0, 0.0, 2.0, 5.0]), flip=0.5, soften=0.34, margin=0.5)
    >>> judged.smoothing, judged.margin
    (tensor([1.0000, 0.5000, 0.0000, 0.0000]), tensor([1.5000, 0.0000, 1.0000, 2.5000]))
    """
    check_shapes("P", strength=strength)
    count = len(strength)
    order = strength.argsort()
    flipped = torch.zeros(count, dtype=torch.bool)
    flipped[order[: int(flip * count)]] = True
    flipped &= strength < 0
    certainty = strength.abs().where(flipped, strength)
    others = [place for place in certainty.argsort().tolist() if not flipped[place]]
    kept = torch.ones(count, dtype=torch.bool)
    dropped = int(drop * len(others))
    kept[others[:dropped]] = False
    soft = torch.zeros(count, dtype=torch.bool)
    soft[others[dropped : dropped + int(soften * len(others))]] = True
    smoothing = flipped.to(strength.dtype).where(~soft, (-strength.abs()).sigmoid())
    return JudgedLabels(smoothing, (margin * certainty.clamp(min=0)).where(~soft, 0.0), kept)
