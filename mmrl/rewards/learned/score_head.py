"""`ScoreHead`: scores on one or several axes from the features of an answer, with a variance if they are Gaussian.

`RaterEncoder` infers who rates: a latent vector from a few of a rater's pairs (VPL, arXiv:2408.10075).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_VARIANCE = 1e-3
"""The least variance of a Gaussian score, so that its likelihood stays bounded."""


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a head."""

    features: int
    """F, of an answer and its prompt."""
    axes: int = 1
    """A, scores of one answer."""
    hidden: int = 128
    """Units of the hidden layer; 0: the head is linear."""
    gaussian: bool = False
    """True: each score has a variance."""
    latent: int = 0
    """L, of a rater; 0: all raters are one."""
    dropout: float = 0.0


class ScoreHead(nn.Module):
    """A linear head, or one with a hidden layer, on features that are not trained."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        outputs = shape.axes * (2 if shape.gaussian else 1)
        inputs = shape.features + shape.latent
        hidden = [nn.Linear(inputs, shape.hidden), nn.GELU(), nn.Dropout(shape.dropout)] if shape.hidden else []
        self.layers = nn.Sequential(*hidden, nn.Linear(shape.hidden or inputs, outputs))

    def forward(
        self,
        features: Tensor,  # [B, F]
        latent: Tensor | None = None,  # [B, L]
    ) -> tuple[Tensor, Tensor | None]:  # [B, A] and [B, A]
        """Return scores and, of a Gaussian head, their variances."""
        found: Tensor = self.layers[-1](self.represent(features, latent))
        if not self.shape.gaussian:
            return found, None
        mean, raw = found.chunk(2, dim=1)
        return mean, functional.softplus(raw) + MIN_VARIANCE

    def represent(
        self,
        features: Tensor,  # [B, F]
        latent: Tensor | None = None,  # [B, L]
    ) -> Tensor:  # [B, H], or [B, F + L] of a linear head
        """Return what the last layer sees, in which scores are linear."""
        found: Tensor = features if latent is None else torch.cat([features, latent], dim=1)
        for layer in list(self.layers)[:-1]:
            found = layer(found)
        return found


class RaterEncoder(nn.Module):
    """The distribution of a rater's latent vector, from the features of pairs that the rater has judged."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        width = shape.hidden or shape.latent
        self.of_pair = nn.Sequential(nn.Linear(2 * shape.features, width), nn.GELU(), nn.Linear(width, width))
        self.of_rater = nn.Linear(width, 2 * shape.latent)

    def forward(
        self,
        chosen: Tensor,  # [R, C, F]; C pairs of each rater
        rejected: Tensor,  # [R, C, F]
    ) -> tuple[Tensor, Tensor]:  # [R, L] each
        """Return mean and log-variance. The order of the pairs has no effect."""
        pairs = self.of_pair(torch.cat([chosen, rejected], dim=-1))
        mean, log_variance = self.of_rater(pairs.mean(1)).chunk(2, dim=-1)
        return mean, log_variance.clamp(-8.0, 4.0)
