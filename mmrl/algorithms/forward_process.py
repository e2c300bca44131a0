"""Losses on the forward process: noise a finished sample again and regress the velocity there.

They need no log-probabilities and no stochastic sampler. Conventions are flow matching's: sigma from 1 (noise) to
0 (clean), x_t = (1 - sigma) x0 + sigma noise, velocity v = noise - x0, and so x0 = x_t - sigma v.
"""

from __future__ import annotations

from torch import Tensor

from mmrl.algorithms.rows import at_least_float32, row_mean, sigma_per_row
from mmrl.checks import check_shapes


def interpolate(
    clean: Tensor,  # [B, ...] x0
    noise: Tensor,  # [B, ...] standard normal
    sigma: float | Tensor,  # in [0, 1]; one for all rows, or [B]
) -> Tensor:  # [B, ...] x_t, in the dtype of `clean`
    """x_t = (1 - sigma) x0 + sigma noise (rectified flow, arXiv:2209.03003).

    >>> import torch
    >>> interpolate(torch.tensor([[4.0]]), torch.tensor([[0.0]]), 0.25)
    tensor([[3.]])
    """
    check_shapes("B ...", clean=clean, noise=noise)
    level = sigma_per_row(sigma, clean)
    return ((1 - level) * clean + level * noise).to(clean.dtype)


def optimality(
    advantages: Tensor,  # [B]
    clip: float,
) -> Tensor:  # [B], in [0, 1]
    """The probability rho that a sample is a good one: advantages limited to [-clip, clip], then A / (2 clip) + 1/2.

    DiffusionNFT, arXiv:2509.16117; at its clip of 5 this is A / 10 + 1/2. Advantage 0 gives 1/2, which pulls the
    velocity to the old one and teaches nothing: leave unscored rows out of the loss rather than at 1/2.

    >>> import torch
    >>> optimality(torch.tensor([-9.0, 0.0, 2.5]), clip=5.0)
    tensor([0.0000, 0.5000, 0.7500])
    """
    check_shapes("B", advantages=advantages)
    if clip <= 0:
        raise ValueError(f"clip: expected a number > 0, got {clip}")
    return advantages.clamp(-clip, clip) / (2 * clip) + 0.5


def nft_loss(
    velocity: Tensor,  # [B, ...] of the trained policy at x_t, with gradients
    old_velocity: Tensor,  # [B, ...] of the sampling policy at x_t; gets no gradient
    x_t: Tensor,  # [B, ...]
    sigma: float | Tensor,  # the noise level of x_t, in (0, 1]; one for all rows, or [B]
    clean: Tensor,  # [B, ...] the x0 that x_t was made from
    rho: Tensor,  # [B], in [0, 1]; see `optimality`
    beta: float,
    floor: float = 1e-5,
    *,
    negatives: bool = True,
) -> Tensor:  # [B], >= 0
    """DiffusionNFT: fit good samples by v+ and bad ones by v-, two velocities mirrored about the old one.

        v+ = beta v + (1 - beta) v_old        v- = (1 + beta) v_old - beta v
        loss = rho err(v+) / beta + (1 - rho) err(v-) / beta
        err(u) = mean((x_t - sigma u - x0)^2) / max(mean|x_t - sigma u - x0|, floor)

    Means are over latent dimensions; the denominator is detached, one a sample and a term. At v = v_old the gradient
    with respect to v is -2 (2 rho - 1) sigma^2 (noise - x0 - v) / (D * denominator), D the number of dimensions: of
    any beta, towards the sample's own velocity if rho > 1/2, away from it if rho < 1/2.

    Without `negatives` only rho err(v+) / beta is left, the paper's ablation: bad samples attract too, only less. At
    v = v_old the factor 2 (2 rho - 1) above becomes 2 rho, so that the average sample no longer teaches nothing.

    Source: arXiv:2509.16117; NVlabs/DiffusionNFT scripts/train_nft_sd3.py@24af555, around line 940. The paper's
    pseudocode regresses velocities without 1/beta; the code regresses x0, self-normalised, with 1/beta (its authors
    call that a stabiliser, issue #13), and so does this. The code then multiplies by the advantage clip (5), which
    is left to the caller: published KL coefficients are relative to that 5 times larger loss. It takes the
    denominator in float64; here all is in float32 or wider for any dtype of velocities.
    """
    sizes = check_shapes("B ...", velocity=velocity, old_velocity=old_velocity, x_t=x_t, clean=clean)
    check_shapes("B", {"B": sizes["B"]}, rho=rho)
    if beta <= 0:
        raise ValueError(f"beta: expected a number > 0, got {beta}")
    new, old = at_least_float32(velocity), at_least_float32(old_velocity).detach()
    level = sigma_per_row(sigma, x_t)

    def error(u: Tensor) -> Tensor:
        difference = at_least_float32(x_t) - level * u - clean
        return row_mean(difference**2) / row_mean(difference.detach().abs()).clamp(min=floor)

    good = rho * error(beta * new + (1 - beta) * old)
    if not negatives:
        return good / beta
    return (good + (1 - rho) * error((1 + beta) * old - beta * new)) / beta


def nft_old_decay(step: int, *, flat: int = 0, rate: float = 0.001, cap: float = 0.5) -> float:
    """The decay of the sampling policy's average, in [0, cap]: old = decay * old + (1 - decay) * new.

    0 (the sampling policy is the trained one) before `flat`, then rising by `rate` a step up to `cap`. `step` counts
    optimizer updates, while the average itself is taken once an iteration, as in NVlabs/DiffusionNFT
    (scripts/train_nft_sd3.py, `return_decay`), whose decay types are (flat, rate, cap) = 0: (0, 0, 0),
    1: (0, 0.001, 0.5), 2: (75, 0.0075, 0.999).

    >>> [nft_old_decay(step) for step in (0, 200, 900)]
    [0.0, 0.2, 0.5]
    """
    return min(max(step - flat, 0) * rate, cap)
