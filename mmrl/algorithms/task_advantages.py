"""Advantages in a mix of tasks whose rewards have different metrics: the spread that divides is a task's.

Rewards [B], group ids [B] and task ids [B] in, advantages [B] out, as in `advantages`. A task is named by its rows, so
that tasks may be of any sizes and in any order; statistics of a task are over its groups in the rows that are given.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_counts, group_mean, group_spread, group_std
from mmrl.checks import check_dtypes, check_shapes


def task_mean_advantages(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int; the prompt each rollout answers
    task_index: Tensor,  # [B] int; the task of that prompt
    *,
    ddof: Literal[0, 1] = 1,
    eps: float = 1e-6,
) -> Tensor:  # [B]; 0 if unscored or alone in its group
    """Each reward minus its group's mean, over the root of the mean variance of all groups of its task.

    TMN of GoLongRL (arXiv:2605.19577; xiaoxuanNLP/GoLongRL verl/trainer/ppo/core_algos.py@c34dba3,
    `compute_tmn_grpo_outcome_advantage`, which has ddof = 1). All answers to a task share one scale: those of a metric
    that hardly varies are as large as those of one that varies much, but a prompt whose answers are nearly equal counts
    less than one whose answers differ, where GRPO's own spread makes the two alike. Groups without any spread count in
    the mean, so that the few others of a task are the larger. Groups with no more than `ddof` scored answers do not
    (the published code takes their variance as 1).

    Raises:
        ValueError: the rows of a group are of two tasks.

    >>> rewards, groups = torch.tensor([0.0, 8.0, 4.0, 4.0]), torch.tensor([0, 0, 1, 1])
    >>> task_mean_advantages(rewards, groups, torch.zeros(4).long(), ddof=0, eps=0.0)  # variances of 16 and 0
    tensor([-1.4142,  1.4142,  0.0000,  0.0000])
    """
    _check_tasks(rewards, group_index, task_index)
    variance = group_std(rewards, group_index, ddof) ** 2
    scale = _mean_over_groups(variance, group_index, task_index).sqrt()
    tells = rewards.isfinite() & (group_spread(rewards, group_index) > 0)
    centred = (rewards - group_mean(rewards, group_index)).where(tells, 0.0)
    return (centred / (scale + eps)).where(tells & (scale + eps > 0), 0.0)


def difficulty_factors(
    rewards: Tensor,  # [B] float; NaN = could not be scored
    group_index: Tensor,  # [B] int
    task_index: Tensor,  # [B] int
    *,
    gamma: float = 1.0,
    smoothing: float = 0.8,
) -> Tensor:  # [B], in [exp(-gamma / 2), exp(gamma / 2)]; 1 if unscored
    """Factors that make good answers to hard prompts count more, and bad answers to them less; easy ones conversely.

    An answer passes if its reward is above `smoothing` times the mean of its group plus the rest of the mean of its
    task's groups. With p the share of a group that passes, answers above their group's mean have exp(gamma (0.5 - p)),
    and the others exp(gamma (p - 0.5)): the difficulty-adaptive weights of GoLongRL (arXiv:2605.19577, source as
    above, which trains with gamma = 1 and smoothing = 0.8).

    Raises:
        ValueError: the rows of a group are of two tasks.

    >>> rewards, groups = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.zeros(4).long()
    >>> difficulty_factors(rewards, groups, groups)  # one in four passes: exp(-0.25) and exp(0.25)
    tensor([0.7788, 0.7788, 0.7788, 1.2840])
    """
    _check_tasks(rewards, group_index, task_index)
    own = group_mean(rewards, group_index)
    bar = smoothing * own + (1 - smoothing) * _mean_over_groups(own, group_index, task_index)
    scored = rewards.isfinite()
    rate = group_mean((rewards > bar).to(rewards.dtype).where(scored, math.nan), group_index)
    sign = torch.where(rewards > own, 1.0, -1.0)
    return (gamma * sign * (0.5 - rate)).exp().where(scored, 1.0)


def _mean_over_groups(values: Tensor, group_index: Tensor, task_index: Tensor) -> Tensor:
    """Return [B] the mean over the groups of each row's task of a value [B] that a group's rows share; NaN is none."""
    share = values / group_counts(values, group_index)  # so that a group counts once, however many rows it has
    one = torch.ones_like(values).where(values.isfinite(), math.nan) / group_counts(values, group_index)
    return group_mean(share, task_index) / group_mean(one, task_index)


def _check_tasks(rewards: Tensor, group_index: Tensor, task_index: Tensor) -> None:
    check_shapes("B", rewards=rewards, group_index=group_index, task_index=task_index)
    check_dtypes("int", task_index=task_index)
    if group_spread(task_index.double(), group_index).any():
        raise ValueError("task_index: all answers to a prompt are of one task, but those of a group are of several")
