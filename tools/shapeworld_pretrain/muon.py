"""Muon in single precision: processors without bfloat16 spend a third of a step in `torch.optim.Muon`.

Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Newton-Schulz coefficients of the paper: steep at zero, so that five rounds bring singular values near one."""


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made nearly orthogonal before each step. For matrices, and kernels of convolutions as
    matrices of one row an output."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; those of one shape are orthogonalised together.

        Raises:
            ValueError: there is a closure, which nothing here evaluates.
        """
        if closure is not None:
            raise ValueError("Muon takes no closure: call backward() before step()")
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[tuple[nn.Parameter, Tensor]]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes.setdefault((len(matrix), matrix[0].numel()), []).append((matrix, matrix.grad))
            for (rows, columns), pairs in shapes.items():
                moves = torch.stack([self._momentum(*pair, group["momentum"]).flatten(1) for pair in pairs])
                scale = max(1.0, rows / columns) ** 0.5
                for (matrix, _), move in zip(pairs, orthogonal(moves), strict=True):
                    matrix.add_(move.view_as(matrix), alpha=-group["lr"] * scale)

    def _momentum(self, matrix: nn.Parameter, gradient: Tensor, share: float) -> Tensor:
        state = self.state[matrix]
        kept = state.setdefault("momentum", torch.zeros_like(matrix))
        kept.lerp_(gradient, 1 - share)
        return torch.lerp(gradient, kept, share)  # Nesterov's


def orthogonal(
    matrices: Tensor,  # [N, rows, columns]
    rounds: int = 5,
) -> Tensor:
    """Matrices with the same singular vectors and with singular values between 0.7 and 1.2 or so."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x
