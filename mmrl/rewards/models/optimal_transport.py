"""Optimal transport between sets of vectors: the map between their Gaussians, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.checks import check_shapes


@dataclass(frozen=True)
class GaussianTransport:
    """The map of least mean squared way that carries one Gaussian onto another (the Monge map of Bures' distance).

    T(x) = m₂ + A (x − m₁) with A = C₁^(−1/2) (C₁^(1/2) C₂ C₁^(1/2))^(1/2) C₁^(−1/2), of means m and covariances C: A is
    symmetric and positive, so directions are stretched and never turned around.
    """

    source_mean: Tensor  # [D]
    target_mean: Tensor  # [D]
    matrix: Tensor  # [D, D]

    @classmethod
    def fit(cls, source: Tensor, target: Tensor, ridge: float) -> GaussianTransport:
        """Return the map of the Gaussians with the means and covariances of two sets, which need not be paired.

        Args:
            source: [N, D], at least two.
            target: [M, D], at least two.
            ridge: what is added to the variance in all directions, as a share of their mean variance, above 0.
        """
        sizes = check_shapes("N D", source=source)
        check_shapes("M D", {"D": sizes["D"]}, target=target)
        first, second = (_covariance(each.double(), ridge) for each in (source, target))
        root = _power(first, 0.5)
        back = _power(first, -0.5)
        matrix = back @ _power(root @ second @ root, 0.5) @ back
        return cls(source.double().mean(0), target.double().mean(0), matrix)

    def __call__(self, vectors: Tensor, share: float = 1.0) -> Tensor:
        """Return vectors [B, D] carried a share of their way: 0 leaves them, 1 arrives (McCann's interpolation)."""
        source, target, matrix = (each.to(vectors) for each in (self.source_mean, self.target_mean, self.matrix))
        return (1 - share) * vectors + share * (target + (vectors - source) @ matrix)


def _covariance(vectors: Tensor, ridge: float) -> Tensor:  # [N, D] -> [D, D]
    offsets = vectors - vectors.mean(0)
    covariance = offsets.T @ offsets / len(vectors)
    added = ridge * covariance.diagonal().mean()
    return covariance + added * torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of a symmetric positive matrix [D, D]."""
    values, directions = torch.linalg.eigh(matrix)
    scales: Tensor = values.clamp(min=torch.finfo(values.dtype).tiny) ** exponent
    power: Tensor = (directions * scales) @ directions.T
    return power
