"""A bound of the error of a linear reward model (PrefPaint, arXiv:2410.21966).

A score is linear in the features that the last layer of a head sees. With V = ridge I + sum of phi phi^T over the
answers that were rated, its error at an answer is at most a constant times |phi|_{V^-1} = sqrt(phi^T V^-1 phi): small
in the directions that rated answers have, large in those that none had.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_shapes


def inverse_precision(features: Tensor, ridge: float) -> Tensor:  # [N, F] of rated answers; [F, F] float32
    """Return the inverse of V.

    Raises:
        ValueError: the ridge is not above 0.

    >>> inverse_precision(torch.tensor([[1.0, 0.0]]), ridge=1.0)
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    sizes = check_shapes("N F", features=features)
    if ridge <= 0:
        raise ValueError(f"ridge is {ridge}; expected a number above 0")
    exact = features.double()
    precision = ridge * torch.eye(sizes["F"], dtype=torch.float64, device=features.device) + exact.T @ exact
    inverse: Tensor = torch.linalg.inv(precision).float()
    return inverse


def error_bounds(features: Tensor, inverse: Tensor) -> Tensor:  # [B, F], [F, F]; [B]
    """Return |phi|_{V^-1} of each answer, at least 0; the bound of its error is a constant times this.

    >>> error_bounds(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([[0.25, 0.0], [0.0, 1.0]]))
    tensor([2., 1.])
    """
    sizes = check_shapes("B F", features=features)
    check_shapes("F F", {"F": sizes["F"]}, inverse=inverse)
    return ((features @ inverse) * features).sum(1).clamp(min=0).sqrt()
