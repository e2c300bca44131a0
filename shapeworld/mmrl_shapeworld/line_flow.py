"""A flow of one number whose velocity is known, and how far the samplers of denoising steps are from its distribution.

The data are a mixture of two Gaussians. `density_gap` compares the density that follows from the log-probabilities of
the steps, by the Chapman-Kolmogorov equation on a grid, with a count of samples; `marginal_gap` compares the samples of
many small steps with the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from mmrl.generation.diffusion.transitions import ODE, Transition

MEANS, SPREADS = (-0.6, 0.6), (0.25, 0.35)
"""The two Gaussians of the data, which are equally likely."""
EDGE, PLACES = 5.0, 1201
"""The grid of densities: from -EDGE to EDGE."""
BINS = 24
"""Densities are compared in this many bins between -2 and 2, and samples at as many quantiles."""
SAMPLES, SMALL_STEPS = 100_000, 200


def line_velocity(x: Tensor, sigma: float) -> Tensor:  # [N, 1] -> [N, 1]
    """Return the exact velocity: the mean of noise minus data, given their mixture at a noise level."""
    means, spreads = torch.tensor(MEANS), torch.tensor(SPREADS)
    variance = ((1 - sigma) * spreads) ** 2 + sigma**2  # [2]
    off = x - (1 - sigma) * means  # [N, 2]
    share = (-(off**2) / (2 * variance) - variance.log() / 2).softmax(dim=1)
    noise, data = sigma * off / variance, means + (1 - sigma) * spreads**2 * off / variance
    return (share * (noise - data)).sum(dim=1, keepdim=True)


@torch.no_grad()
def density_gap(
    transition: Transition, is_decision: Callable[[int], bool], sigmas: Sequence[float], generator: torch.Generator
) -> list[float]:
    """Return for each bin |density from log-probabilities - density of samples|, over the largest density.

    Steps that are no decisions follow the ODE, whose density is that of the grid's points where they arrive.
    """
    grid = torch.linspace(-EDGE, EDGE, PLACES)[:, None]
    cell = 2 * EDGE / (PLACES - 1)
    mass = (-(grid[:, 0] ** 2) / 2).exp() / math.sqrt(2 * math.pi) * cell
    x = torch.randn(SAMPLES, 1, generator=generator)
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        if is_decision(step):
            mean, std = transition.moments(grid, line_velocity(grid, sigma), sigma, sigma_next)
            mass = mass @ (_log_densities(transition, grid, mean, std).exp() * cell)
        else:
            mass = _moved(mass, ODE().moments(grid, line_velocity(grid, sigma), sigma, sigma_next)[0])
        x = _drawn(transition, is_decision(step), x, sigma, sigma_next, generator)
    edges = torch.linspace(-2, 2, BINS + 1)
    ends = torch.cat([torch.zeros(1), mass.cumsum(0)])
    upto = (edges + EDGE) / cell + 0.5  # the mass of a point lies in the cell around it
    low = upto.long()
    known = (ends[low] + (upto - low) * (ends[low + 1] - ends[low])).diff()
    counted = torch.histogram(x[:, 0], edges).hist / SAMPLES
    gap: list[float] = ((known - counted).abs() / counted.max()).tolist()
    return gap


@torch.no_grad()
def marginal_gap(transition: Transition, generator: torch.Generator) -> list[float]:
    """Return at each quantile the distance between the samples of many small steps and the data.

    The last step follows the ODE, as the step to the data does in all samplers that keep the marginals.
    """
    x = torch.randn(SAMPLES // 5, 1, generator=generator)
    sigmas = [1 - step / SMALL_STEPS for step in range(SMALL_STEPS + 1)]
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x = _drawn(transition, step < SMALL_STEPS - 1, x, sigma, sigma_next, generator)
    grid = torch.linspace(-EDGE, EDGE, 20 * PLACES)
    parts = [
        0.5 * (1 + ((grid - mean) / (spread * math.sqrt(2))).erf()) for mean, spread in zip(MEANS, SPREADS, strict=True)
    ]
    shares = (torch.arange(BINS) + 0.5) / BINS
    places = grid[torch.searchsorted(torch.stack(parts).mean(0), shares)]
    gap: list[float] = (x[:, 0].quantile(shares) - places).abs().tolist()
    return gap


def _drawn(
    transition: Transition, is_decision: bool, x: Tensor, sigma: float, sigma_next: float, generator: torch.Generator
) -> Tensor:
    kind = transition if is_decision else ODE()
    mean, std = kind.moments(x, line_velocity(x, sigma), sigma, sigma_next)
    return mean + std * torch.randn(x.shape, generator=generator)


def _log_densities(
    transition: Transition, grid: Tensor, mean: Tensor, std: float | Tensor
) -> Tensor:  # [PLACES, PLACES]
    """Return the log-density of a step from each point of the grid (rows) to each other one (columns)."""
    count = len(grid)
    spread = std if not isinstance(std, Tensor) else std.expand(count, 1).repeat_interleave(count, dim=0)
    found = transition.log_prob(grid.repeat(count, 1), mean.repeat_interleave(count, dim=0), spread)
    return found.view(count, count)


def _moved(mass: Tensor, places: Tensor) -> Tensor:  # [PLACES], [PLACES, 1] -> [PLACES]
    """Return the mass on the grid after each of its points went to a place, shared between the two points around it."""
    at = ((places[:, 0] + EDGE) / (2 * EDGE) * (PLACES - 1)).clamp(0, PLACES - 1.001)
    low = at.long()
    share = at - low
    return torch.zeros_like(mass).index_add(0, low, mass * (1 - share)).index_add(0, low + 1, mass * share)
