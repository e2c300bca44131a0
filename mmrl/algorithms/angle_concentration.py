"""Angle concentration: how nearly the hidden states of a prompt's tokens point one way (GAIN-RL, arXiv:2506.02281)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.checks import check_shapes


def angle_concentration(
    states: Tensor,  # [L, D] float, of the tokens of one prompt, the last of the model's hidden states
    question: Tensor,  # [L] bool; the tokens of the question itself
    context: Tensor,  # [L] bool; those before it, such as a system prompt or a picture
) -> tuple[Tensor, Tensor]:  # [], [] float64 in [-1, 1]
    """Return the mean cosine between tokens of the question, and between those and the tokens of its context.

    The first, within the segment, is over pairs of different tokens, so that it does not depend on the number of tokens
    by their cosine of 1 with themselves; it is 1 for one token. The second, between the segments, is 0 without context.

    Raises:
        ShapeError: shapes do not fit.
        ValueError: the question has no tokens.
    """
    check_shapes("L D", states=states)
    check_shapes("L", {"L": states.shape[0]}, question=question, context=context)
    own, other = int(question.sum()), int(context.sum())
    if not own:
        raise ValueError("the question has no tokens, whose hidden states could be compared")
    directions = F.normalize(states.double(), dim=-1)
    resultant = directions[question].sum(dim=0)
    within = (resultant @ resultant - own) / (own * (own - 1)) if own > 1 else resultant.new_ones(())
    between = resultant @ directions[context].sum(dim=0) / (own * max(other, 1))
    return within.clamp(-1, 1), torch.clamp(between, -1, 1)
