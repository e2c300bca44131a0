"""A start rule of token budgets: sub-groups of answers with a budget each, and a reward that depends on it (HBPO).

A penalty on length alone makes all answers short, and long chains are no longer explored where they are needed. With
sub-groups of different budgets, each group has short and long attempts at its prompt until the end of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.config.train import TrainConfig
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import TOTAL, RewardOutput
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.contrast_rule import start_from
from mmrl.training.rollouts.start_rules import (
    StartContext,
    StartRule,
    by_label,
    labels,
    rows_of_groups,
    selection,
    token_counts,
)

NAME = "budget"
"""The name of the reward, and the beginning of the labels of sub-groups: `budget-512`."""


@dataclass(frozen=True)
class TokenBudgets(StartRule):
    """Each group has as many answers of each budget, and a right answer earns by its length and its budget.

    HBPO (arXiv:2507.15844). An answer of n tokens with the budget b, right and of at most L = `limit` tokens, has the
    total min(β cos(πn / 2L) - α |n - b| / L, β cos(πb / 2L)): the same for all lengths up to about b, and less beyond.
    A larger budget earns less, so long answers win only where short ones are wrong. The total of a right answer that
    is longer than L is 0, and wrong answers keep theirs. All answers of a prompt are compared; each advantage has
    `credit` times what the mean of its sub-group lacks to β cos(πb / 2L) added, so that budgets that do not suffice
    lose as a whole. β, α and the sum are those of the authors' code, which adds the second term twice (ZJU-REAL/HBPO
    verl/trainer/ppo/core_algos.py@5c8991d).

    A budget is announced, by the prefix or the prompt, and no limit: answers end at `sampling.max_new_tokens`. Tokens
    of the prefix do not count.
    """

    budgets: tuple[int, ...]
    """The budgets in tokens, each for an equal share of a group."""
    limit: int
    """L, the most tokens of an answer that earns anything."""
    prefix: str = "<think> I will answer the question with {budget} tokens"
    """The beginning of answers; {budget}, {prompt} and the names of metadata stand for their texts."""
    prompt: str = "{prompt}"
    """The prompt, with the same names."""
    scale: float = 4.0
    """β, what a right answer of no tokens would earn."""
    slope: float = 1.0
    """α, the price of a deviation of L tokens from the budget."""
    credit: float = 1.0
    """The weight of the sub-group's own term in advantages."""
    success: float = 1.0
    """An answer is right if its total reward is at least this."""

    def __post_init__(self) -> None:
        if not self.budgets or len(set(self.budgets)) < len(self.budgets):
            raise ValueError(f"budgets is {self.budgets!r}; expected one or more different numbers of tokens")
        if not 1 <= min(self.budgets) <= max(self.budgets) <= self.limit:
            raise ValueError(f"budgets are from 1 to limit, {self.limit} tokens, but are {list(self.budgets)}")
        if self.scale <= 0 or min(self.slope, self.credit) < 0:
            raise ValueError("scale is above 0, slope and credit are 0 or above")

    def errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield a message if the algorithm does not learn from the advantages that credit is added to."""
        if self.credit and not config.algorithm.reads_advantages:
            yield (
                f"data.starts: token_budgets adds the credit of sub-groups to advantages, from which "
                f"{config.algorithm.name} does not learn: set credit 0, or choose grpo"
            )

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests, each divided into one for each budget.

        Raises:
            ValueError: a group cannot be divided equally.
        """
        if any(each.n % len(self.budgets) for each in requests):
            raise ValueError(f"data.group_size must be a multiple of {len(self.budgets)}, the number of budgets")
        return [
            replace(
                each,
                n=each.n // len(self.budgets),
                start=start_from(
                    f"{NAME}-{budget}",
                    self.prefix.replace("{budget}", str(budget)),
                    self.prompt.replace("{budget}", str(budget)),
                    each,
                ),
            )
            for each in requests
            for budget in self.budgets
        ]

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select all rows, compared within their whole group, with the totals and the credit of their budgets.

        Metrics: `budget/over`, the share of answers that are longer than their budget, and `budget/chosen`, the mean
        over prompts with a right answer of the budget whose sub-group earns most.
        """
        lengths = torch.tensor(token_counts(scored), dtype=torch.float32)
        of_row = {f"{NAME}-{budget}": float(budget) for budget in self.budgets}
        budgets = torch.tensor([of_row[label] for label in labels(scored)])
        right = scored.total >= self.success
        earned = budget_reward(lengths, budgets, self.limit, self.scale, self.slope)
        total = torch.where(right, earned.where(lengths <= self.limit, 0.0), scored.total)
        credit = self.credit * subgroup_credit(total, by_label(scored), ceiling(budgets, self.limit, self.scale))
        metrics = {"budget/over": float((lengths > budgets).float().mean())}
        best = [
            float(budgets[rows][mean_of_equals(total[rows], budgets[rows]).argmax()])
            for rows in rows_of_groups(scored).values()
            if right[rows].any()
        ]
        if best:
            metrics["budget/chosen"] = sum(best) / len(best)
        found = selection(replace(scored, output=with_total(scored.output, NAME, total)))
        return replace(found, credit=credit, metrics=metrics)


def ceiling(budgets: Tensor, limit: int, scale: float) -> Tensor:
    """Return β cos(πb / 2L) of each budget, the most that a right answer with it earns."""
    return scale * torch.cos(math.pi * budgets / (2 * limit))


def budget_reward(
    lengths: Tensor,  # [R] float, tokens
    budgets: Tensor,  # [R] float, tokens
    limit: int,
    scale: float = 4.0,
    slope: float = 1.0,
) -> Tensor:  # [R] float
    """Return what right answers earn: min(β cos(πn / 2L) - α |n - b| / L, β cos(πb / 2L)) (HBPO, arXiv:2507.15844)."""
    check_shapes("R", lengths=lengths, budgets=budgets)
    by_length = scale * torch.cos(math.pi * lengths / (2 * limit)) - slope * (lengths - budgets).abs() / limit
    return torch.minimum(by_length, ceiling(budgets, limit, scale))


def subgroup_credit(
    totals: Tensor,  # [R] float; NaN = could not be scored
    subgroups: Tensor,  # [R] int64; equal numbers are a sub-group
    ceilings: Tensor,  # [R] float, equal within a sub-group
) -> Tensor:  # [R] float; 0 where no answer of the sub-group could be scored
    """Return the mean total of each row's sub-group less its ceiling (HBPO's advantage within sub-groups)."""
    check_shapes("R", totals=totals, subgroups=subgroups, ceilings=ceilings)
    return (mean_of_equals(totals, subgroups) - ceilings).nan_to_num(0.0)


def mean_of_equals(values: Tensor, keys: Tensor) -> Tensor:
    """Return for each row the mean of the known values [R] of all rows with the same key [R]."""
    alike = keys[:, None] == keys[None, :]
    return torch.where(alike, values[None, :], torch.nan).nanmean(1)


def with_total(output: RewardOutput, name: str, totals: Tensor) -> RewardOutput:
    """Return an output with other totals [R], and one more reward, by which they differ from the old ones."""
    *before, (key, old) = output.values.items()
    assert key == TOTAL
    new = totals.numpy().astype(old.dtype)
    return replace(
        output,
        values={**dict(before), name: np.nan_to_num(new - old), TOTAL: new},
        status={**output.status, name: [Status.OK] * len(new)},
    )
