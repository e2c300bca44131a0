"""The loss that flows are pre-trained with, as a stand-in for a log-probability.

A sample is noised to sigma and the velocity there is compared with the sample's own, noise - x0 (conventions as in
`forward_process`). The smaller the error, the likelier the sample: by the evidence lower bound, log p(x0) is minus the
expected error, weighed over noise levels, and a constant. So minus the error stands where a log-prob would, in
advantage-weighted matching and in the preference losses, and the error itself is imitation's loss.

All errors are *means* over latent dimensions, as the codes cited here have them. Of sums, the same loss would need a
beta (and a clip range) smaller by the number of dimensions.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_max, group_mean
from mmrl.algorithms.kl import velocity_mse
from mmrl.checks import check_shapes

Weighting = Literal["uniform", "sigma", "sigma_squared", "epsilon", "huber", "ghuber"]
"""The weight of the error at a noise level (`weighted_error`)."""

_TINY = 1e-10  # keeps roots differentiable at an error of 0


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
