"""The baseline with the least variance of the policy gradient, and how much of a gradient is signal."""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_counts, group_spread, group_sum
from mmrl.checks import check_dtypes, check_shapes


def optimal_baseline_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int; the prompt each rollout answers
    squared_norms: Tensor,  # [B] float, >= 0; of the gradient of each answer's log-probability
    *,
    leave_one_out: bool = True,
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward minus the mean reward of its group, weighted by squared norms of gradients.

    Of all constants b, the sum over i of |g_i|^2 (r_i - b)^2 is least at b = sum |g_i|^2 r_i / sum |g_i|^2, where g_i
    is the gradient of the log-probability of answer i: as (r - b) g has the same mean for each b, this b has the least
    variance (Greensmith, Bartlett and Baxter 2004; for groups of answers OBLR-PO, arXiv:2511.23310). Answers of equal
    norms are compared with the plain mean.

    With `leave_one_out` an answer takes no part in its own baseline, so that the gradient has no bias, as in
    `rloo_advantages`, which it equals for equal norms. Without, it equals `dr_grpo_advantages` for those.

    Raises:
        ValueError: a norm of a scored row is negative or not finite.

    >>> rewards, groups = torch.tensor([0.0, 1.0]), torch.tensor([5, 5])
    >>> optimal_baseline_advantages(rewards, groups, torch.tensor([3.0, 1.0]), leave_one_out=False)
    tensor([-0.2500,  0.7500])
    """
    check_shapes("B", rewards=rewards, group_index=group_index, squared_norms=squared_norms)
    check_dtypes("float32", rewards=rewards, squared_norms=squared_norms)
    scored = rewards.isfinite()
    tells = scored & (group_spread(rewards, group_index) > 0)
    if not (squared_norms[tells].isfinite() & (squared_norms[tells] >= 0)).all():
        raise ValueError("squared_norms: expected finite numbers >= 0 of all scored answers to prompts that vary")
    # In double precision: what others leave of a sum may be far smaller than the sum.
    weight, value = squared_norms.double().where(tells, torch.nan), rewards.double().where(tells, torch.nan)
    total = group_sum(weight, group_index)
    product = group_sum(weight * value, group_index)
    plain, count = group_sum(value, group_index), group_counts(value, group_index)
    if leave_one_out:
        own, reward = weight.nan_to_num(0.0), value.nan_to_num(0.0)
        total, product, plain, count = total - own, product - own * reward, plain - reward, count - 1
    # Where no other answer has a gradient, all baselines have the same variance.
    weighted = total > 1e-12 * group_sum(weight, group_index)
    baseline = torch.where(weighted, product / total, plain / count)
    return (value - baseline).where(tells, 0.0).to(rewards.dtype)


def signal_share(squared_mean: float, mean_square: float, kept: float) -> float:
    """Return the share of signal in the squared norm of a stochastic gradient, at most 1; 0 or less: none was seen.

    `squared_mean` is the squared norm of an average of gradients and `mean_square` the average of their squared norms.
    Gradients of mean m with noise of variance v have |m|^2 + kept * v and |m|^2 + v for these two, where `kept` is the
    share of the noise that the average has left. The result is |m|^2 / (|m|^2 + v), which is SNR / (1 + SNR): the
    factor on the learning rate that lowers a smooth loss most with one step of gradient descent (OBLR-PO,
    arXiv:2511.23310).

    >>> signal_share(1.0 + 0.25 * 3.0, 1.0 + 3.0, 0.25)
    0.25
    """
    return (squared_mean - kept * mean_square) / ((1 - kept) * mean_square)


def kept_noise(beta: float, steps: int) -> float:
    """Return the share of the variance of independent gradients that is in their moving average, corrected for bias.

    The weights of an average over n steps are (1 - beta) beta^k / (1 - beta^n), and this is the sum of their squares.

    >>> kept_noise(0.9, 1), round(kept_noise(0.5, 2), 4)
    (1.0, 0.5556)
    """
    return (1 - beta) * (1 + beta**steps) / ((1 + beta) * (1 - beta**steps))
