"""Losses on the forward process: noise a finished sample again and compare velocities there.

They need no log-probabilities and no stochastic sampler. Conventions are flow matching's: sigma from 1 (noise) to
0 (clean), x_t = (1 - sigma) x0 + sigma noise, velocity v = noise - x0, and so x0 = x_t - sigma v.

`matching_error`, the loss that flows are pre-trained with, is also a stand-in for a log-probability: the smaller it is,
the likelier the sample. By the evidence lower bound, log p(x0) is minus the expected error, weighed over noise levels,
and a constant. So minus the error stands where a log-prob would, in advantage-weighted matching and in the preference
losses, and the error itself is imitation's loss.

All errors are *means* over latent dimensions, as the codes cited here have them. Of sums, the same loss would need a
beta (and a clip range) smaller by the number of dimensions.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_max, group_mean
from mmrl.checks import check_shapes

Weighting = Literal["uniform", "sigma", "sigma_squared", "epsilon", "huber", "ghuber"]
"""The weight of the error at a noise level (`weighted_error`)."""

_TINY = 1e-10  # keeps roots differentiable at an error of 0


def at_least_float32(values: Tensor) -> Tensor:
    """`values`, widened to float32 if half precision: squared differences of bfloat16 velocities lose their digits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def row_mean(values: Tensor) -> Tensor:
    """[B, ...] -> [B]: the mean over all that is not the batch, in float32 or wider."""
    return at_least_float32(values).flatten(1).mean(1) if values.ndim > 1 else at_least_float32(values)


def sigma_per_row(
    sigma: float | Tensor,  # one noise level for all rows, or [B]
    like: Tensor,  # [B, ...]
) -> Tensor:  # [B, 1, ...], or [] for one level; float32 or wider
    """Noise levels, shaped to broadcast against `like`."""
    if not isinstance(sigma, Tensor):
        return like.new_tensor(sigma, dtype=torch.promote_types(like.dtype, torch.float32))
    check_shapes("B", {"B": like.shape[0]}, sigma=sigma)
    return at_least_float32(sigma).reshape(-1, *[1] * (like.ndim - 1))


def velocity_mse(
    velocity: Tensor,  # [B, ...]
    reference_velocity: Tensor,  # [B, ...]
) -> Tensor:  # [B], >= 0
    """Mean over latent dimensions of (velocity - reference_velocity)^2: a penalty that no noise level scales.

    The KL term of DiffusionNFT (arXiv:2509.16117) and of UniGRPO (arXiv:2603.23500). Needs no noise at all.

    >>> velocity_mse(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([2.])
    """
    check_shapes("B ...", velocity=velocity, reference_velocity=reference_velocity)
    return row_mean((at_least_float32(velocity) - at_least_float32(reference_velocity).detach()) ** 2)


def interpolate(
    clean: Tensor,  # [B, ...] x0
    noise: Tensor,  # [B, ...] standard normal
    sigma: float | Tensor,  # in [0, 1]; one for all rows, or [B]
) -> Tensor:  # [B, ...] x_t, in the dtype of `clean`
    """x_t = (1 - sigma) x0 + sigma noise (rectified flow, arXiv:2209.03003).

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


def matching_error(
    velocity: Tensor,  # [B, ...] of a policy at x_t, with gradients
    clean: Tensor,  # [B, ...] x0
    noise: Tensor,  # [B, ...] that x_t was made with
) -> Tensor:  # [B], >= 0; float32 or wider
    """Mean over latent dimensions of (velocity - (noise - x0))^2: the flow-matching loss (arXiv:2210.02747).

    >>> matching_error(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2), torch.tensor([[1.0, 1.0]]))
    tensor([2.])
    """
    check_shapes("B ...", velocity=velocity, clean=clean, noise=noise)
    return velocity_mse(velocity, noise - clean)


def weighted_error(
    error: Tensor,  # [B], >= 0; see `matching_error`
    sigma: float,  # the noise level it was taken at, in (0, 1]
    weighting: Weighting = "uniform",
) -> Tensor:  # [B], >= 0
    """The error of one noise level, weighed.

    - `uniform`: as it is, which flows are trained with; AWM's paper finds it best.
    - `sigma`, `sigma_squared`: times sigma, or its square (the x0 error, since x0 = x_t - sigma v).
    - `epsilon`: times (1 - sigma)^2, the error of the *noise* that the velocity implies, on which models that predict
      noise are trained: Diffusion-DPO's (arXiv:2311.12908).
    - `huber`: sigma times the root of the error. `ghuber`: sigma times its fourth root, times 4. Their gradients do not
      vanish as the error does; `ghuber` is the default of AWM's code (scxue/advantage_weighted_matching
      scripts/train_sd3_awm.py@12b1397, `compute_log_prob_awm`).

    >>> weighted_error(torch.tensor([4.0]), 0.5, "sigma_squared")
    tensor([1.])
    """
    check_shapes("B", error=error)
    if not 0 < sigma <= 1:
        raise ValueError(f"sigma: expected a number in (0, 1], got {sigma}")
    match weighting:
        case "uniform":
            return error
        case "sigma":
            return sigma * error
        case "sigma_squared":
            return sigma * sigma * error
        case "epsilon":
            return (1 - sigma) * (1 - sigma) * error
        case "huber":
            return sigma * ((error + _TINY).pow(0.5) - math.sqrt(_TINY))
        case "ghuber":
            return 4 * sigma * ((error + _TINY).pow(0.25) - math.sqrt(math.sqrt(_TINY)))
    raise ValueError(f"weighting: expected one of {', '.join(get_args(Weighting))}, got {weighting!r}")


def matching_log_ratio(
    error: Tensor,  # [B] of the policy, with gradients
    reference_error: Tensor,  # [B] of the reference, on the same noise
) -> Tensor:  # [B]
    """-(error - reference error) / 2: what stands for log(p_policy / p_reference) in a preference loss.

    With it `dpo_loss` reads -log sigmoid(-beta / 2 [(e_w - e_w,ref) - (e_l - e_l,ref)]): Diffusion-DPO
    (arXiv:2311.12908, equation 14; SalesforceAIResearch/DiffusionDPO train.py@8d3ee5c, `inside_term`) and Flow-DPO with
    a constant beta (arXiv:2501.13918), one noise level at a time. The mean over latent dimensions and the 1/2 are those
    of both codes; the factors T and omega of the paper's equation are in beta. A pair must share noise and noise level,
    or the difference between their noise drowns that between the samples. No gradient reaches the reference.

    >>> matching_log_ratio(torch.tensor([1.0]), torch.tensor([3.0]))
    tensor([1.])
    """
    check_shapes("B", error=error, reference_error=reference_error)
    return -(error - reference_error.detach()) / 2


def reward_weights(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
    temperature: float,
    normalise: bool = False,
) -> Tensor:  # [B], >= 0; 0 if unscored
    """exp(reward / temperature): what reward-weighted regression weighs each sample's error by (Flow-RWR,
    arXiv:2501.13918; on diffusion models arXiv:2302.12192).

    Its fixed point is the distribution that maximises reward - temperature KL(policy || sampler): the sampler's, times
    exp(reward / temperature), over a constant of each prompt. `normalise` divides by the mean weight of the group, an
    estimate of that constant, so that every prompt counts the same; published losses leave it out.

    >>> reward_weights(torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([0, 0, 0]), temperature=1.0)
    tensor([1.0000, 2.7183, 0.0000])
    """
    check_shapes("B", rewards=rewards, group_index=group_index)
    if temperature <= 0:
        raise ValueError(f"temperature: expected a number > 0, got {temperature}")
    scored = rewards.isfinite()
    exponent = rewards.where(scored, torch.nan).double() / temperature
    if normalise:
        exponent = exponent - group_max(exponent, group_index)  # cancels
    weights = exponent.exp()
    if normalise:
        weights = weights / group_mean(weights, group_index)
    weights = weights.where(scored, 0.0).to(rewards.dtype)
    if not weights.isfinite().all():
        raise ValueError(
            f"exp(reward / temperature) overflows at reward {rewards[scored].max().item():g} and temperature "
            f"{temperature:g}: raise the temperature, or divide by the group's mean"
        )
    return weights
