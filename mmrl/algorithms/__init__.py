"""Tensor maths of reinforcement learning: no model, no sampler, no loop. Imports torch and mmrl.checks, nothing else.

Where it fits: `mmrl.training` composes these into objectives; token and picture policies share them, since a token
and a denoising step are both decisions, [B, T].

    groups          statistics within the groups of trajectories that answer one prompt
    advantages      rewards [B] -> advantages [B] -> [B, T]
    policy_losses   terms [B, T] from log-probabilities, and how terms become a loss
    kl              distance from the reference, for tokens and for flows
    forward_process losses on re-noised samples, which need velocities and no log-probabilities
    rows            what losses on latents [B, ...] share

To add one: a function beside its siblings, shapes on its signature, `check_shapes` at its door, its source in its
docstring; then four tests: by hand, property, every term moves a parameter, negative control.
"""

from mmrl.algorithms.advantages import (
    broadcast_to_decisions,
    dr_grpo_advantages,
    gdpo_advantages,
    grpo_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
    zero_variance_share,
)
from mmrl.algorithms.forward_process import interpolate, nft_loss, nft_old_decay, optimality
from mmrl.algorithms.groups import group_counts, group_mean, group_spread, group_std, group_sum
from mmrl.algorithms.kl import gaussian_mean_distance, kl_k1, kl_k2, kl_k3, velocity_mse
from mmrl.algorithms.policy_losses import (
    Aggregation,
    PolicyLoss,
    aggregate,
    aggregation_total,
    aggregation_weights,
    clipped_policy_loss,
)

__all__ = [
    "Aggregation",
    "PolicyLoss",
    "aggregate",
    "aggregation_total",
    "aggregation_weights",
    "broadcast_to_decisions",
    "clipped_policy_loss",
    "dr_grpo_advantages",
    "gaussian_mean_distance",
    "gdpo_advantages",
    "group_counts",
    "group_mean",
    "group_spread",
    "group_std",
    "group_sum",
    "grpo_advantages",
    "interpolate",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "nft_loss",
    "nft_old_decay",
    "optimality",
    "reinforce_pp_advantages",
    "rloo_advantages",
    "velocity_mse",
    "zero_variance_share",
]
