"""Preferences from ranked factors: a decision tree asks the most important one first (HERON, arXiv:2309.02632).

A weighted sum of factors depends on their scales; the order of two answers by the tree does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.config.reward_model import RankedFactorConfig
from mmrl.data.sample import Sample
from mmrl.errors import DataError


def ranked_sides(
    first: Tensor,  # [P, K] factors of one answer of each pair, the most important first; higher is better
    second: Tensor,  # [P, K] of the other answer
    margins: Tensor,  # [K], at least 0
) -> tuple[Tensor, Tensor]:  # [P] and [P] int64
    """Return 1 where the first answer is better, -1 where the second one is, 0 where neither is, and the level.

    The first factor by which the two differ by more than its margin decides; the level is its number, and K where no
    factor does. Multiplying a factor and its margin by a positive number changes nothing.

    >>> first, second = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 9.0], [0.9, 9.0]])
    >>> ranked_sides(first, second, torch.tensor([0.5, 0.0]))
    (tensor([ 1., -1.]), tensor([0, 1]))
    """
    sizes = check_shapes("P K", first=first)
    check_shapes("P K", sizes, second=second)
    check_shapes("K", {"K": sizes["K"]}, margins=margins)
    gaps = first - second
    decisive = gaps.abs() > margins
    level = torch.where(decisive.any(1), decisive.int().argmax(1), sizes["K"])
    side = gaps.sign().gather(1, level.clamp(max=sizes["K"] - 1)[:, None])[:, 0]
    return side.where(level < sizes["K"], 0.0), level


def factor_margins(values: Tensor, deviations: Sequence[float]) -> Tensor:  # [N, K] and K of them; [K]
    """Return margins from multiples of each factor's standard deviation over N answers.

    >>> factor_margins(torch.tensor([[0.0, 10.0], [2.0, 30.0]]), [0.5, 0.0])
    tensor([0.5000, 0.0000])
    """
    check_shapes("N K", {"K": len(deviations)}, values=values)
    return values.std(0, correction=0) * torch.tensor(deviations, dtype=values.dtype)


def factors_of(samples: Sequence[Sample], factors: Sequence[RankedFactorConfig]) -> tuple[Tensor, Tensor]:
    """Return the factors [P, K] of the chosen and of the rejected answers, from `metadata.factors` of P samples.

    Raises:
        DataError: a sample lacks a factor, or one is not a pair of numbers.
    """
    rows = [[_pair(sample, factor.name) for factor in factors] for sample in samples]
    both = torch.tensor(rows, dtype=torch.float64)  # [P, K, 2]
    return both[..., 0], both[..., 1]


def _pair(sample: Sample, name: str) -> tuple[float, float]:
    found = sample.metadata.get("factors")
    values = found.get(name) if isinstance(found, dict) else None
    if not isinstance(values, list | tuple) or len(values) != 2 or not all(map(_is_number, values)):
        raise DataError(
            f"sample {sample.id!r}: metadata.factors.{name} is {values!r:.60}; expected two numbers, of the chosen and "
            "of the rejected answer"
        )
    return float(values[0]), float(values[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
