"""Credit in groups that hold a reference answer beside the policy's own: imitation, and alignment of both."""

from __future__ import annotations

import math

from torch import Tensor

from mmrl.algorithms.groups import group_counts, group_mean
from mmrl.checks import check_dtypes, check_shapes


def aligned_group_credit(
    advantages: Tensor,  # [B] within groups that hold their reference answers; NaN = could not be scored
    group_index: Tensor,  # [B] int
    reference: Tensor,  # [B] bool; True: a reference answer, False: the policy's own
    imitation: float,
    alignment: float,
) -> Tensor:  # [B]; 0 where unscored
    """Coefficients of GRAO's objective in the log-likelihoods of G own answers and the reference (arXiv:2508.07750).

    With J(o) the mean log-probability of an answer's tokens, equation 3 is the mean over own answers o of
    A(o) J(o) + imitation A(y) J(y) + alignment A(o) (J(o) - J(y)), which is linear in J: an own answer has the
    coefficient (1 + alignment) A(o) / G, and the reference y that of imitation A(y) - alignment mean A(o). Both are
    returned times G. Several references of a group share theirs; a group without one has its advantages as they are.

    >>> import torch
    >>> first = torch.tensor([True, False, False])
    >>> aligned_group_credit(torch.tensor([2.0, -1.0, -1.0]), torch.tensor([0, 0, 0]), first, 0.5, 0.6)
    tensor([ 3.2000, -1.6000, -1.6000])
    """
    check_shapes("B", advantages=advantages, group_index=group_index, reference=reference)
    check_dtypes("float32", advantages=advantages)
    check_dtypes("int", group_index=group_index)
    check_dtypes("bool", reference=reference)
    if imitation < 0 or alignment < 0:
        raise ValueError(f"imitation, alignment: expected two numbers >= 0, got {imitation}, {alignment}")
    own = advantages.where(~reference, math.nan)
    count, mean = group_counts(own, group_index), group_mean(own, group_index).nan_to_num(0.0)
    references = group_counts(advantages.where(reference, math.nan), group_index)
    imitated = count * (imitation * advantages - alignment * mean) / references.clamp(min=1)
    explored = (advantages * (1 + alignment)).where(references > 0, advantages)
    return imitated.where(reference, explored).nan_to_num(0.0)
