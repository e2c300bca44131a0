"""Values of the policy that chooses every token with equal probability, as ROVER learns them (arXiv:2509.24981)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.checks import check_dtypes, check_shapes


def successor_values(
    mean_log_probs: Tensor,  # [B, T] over the vocabulary, under the present parameters
    old_mean_log_probs: Tensor,  # [B, T] as sampled
    mask: Tensor,  # [B, T] bool; False = not a decision of the policy
    temperature: float,
) -> Tensor:  # [B, T] without a graph; 0 at an answer's last decision, and where masked
    """Return the mean over the vocabulary of the values Q of the next token, for each token.

    Q of a token is temperature (log p - log p as sampled), so the mean of Q over all tokens that could come next is the
    difference of mean log-probabilities: what an answer is worth that goes on at random. An answer that has ended has
    no next token, and its value is its reward.

    >>> import torch
    >>> mask = torch.tensor([[True, True]])
    >>> successor_values(torch.tensor([[-2.0, -3.0]]), torch.tensor([[-2.0, -2.5]]), mask, 2.0)
    tensor([[-1.,  0.]])
    """
    check_shapes("B T", mean_log_probs=mean_log_probs, old_mean_log_probs=old_mean_log_probs, mask=mask)
    check_dtypes("bool", mask=mask)
    _check_temperature(temperature)
    moved = temperature * (mean_log_probs - old_mean_log_probs).detach().where(mask, 0.0)
    following = torch.cat([moved[:, 1:], torch.zeros_like(moved[:, :1])], dim=1)
    return following.where(mask, 0.0)


def random_policy_loss(
    log_probs: Tensor,  # [B, T] under the present parameters, with gradients
    old_log_probs: Tensor,  # [B, T] as sampled
    rewards: Tensor,  # [B, T] of the whole answer, less its group's mean, at each of its tokens
    successors: Tensor,  # [B, T] returned by `successor_values`
    mask: Tensor,  # [B, T] bool
    temperature: float,
) -> Tensor:  # [B, T], >= 0; 0 where masked
    """(Q - reward - value of the next token)^2 for each token, with Q = temperature (log p - log p as sampled).

    Theorem: where answers form a tree and rewards are 0 or 1, the action with the largest Q of the uniformly random
    policy is optimal. Sampling from softmax(Q / temperature), relative to the policy that sampled, is sampling from the
    policy itself, so no policy is improved beside the values. The reward is at every token, as in the authors' code
    (yuxiaooye/ROVER Countdown/verl/trainer/ppo/core_algos.py@ea5ce63). The gradient before the first update is that of
    -2 temperature reward log p: REINFORCE. Later it ends where the log-ratio has reached its target.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> random_policy_loss(0.5 * one, 0 * one, 2 * one, one, one > 0, 1.0)
    tensor([[6.2500]])
    """
    check_shapes(
        "B T",
        log_probs=log_probs,
        old_log_probs=old_log_probs,
        rewards=rewards,
        successors=successors,
        mask=mask,
    )
    check_dtypes("float32", log_probs=log_probs, rewards=rewards)
    check_dtypes("bool", mask=mask)
    _check_temperature(temperature)
    target = (rewards + successors).detach().where(mask, 0.0)
    values = temperature * (log_probs - old_log_probs.detach()).where(mask, 0.0)
    return (values - target).square()


def _check_temperature(temperature: float) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature: expected a number > 0, got {temperature}")
