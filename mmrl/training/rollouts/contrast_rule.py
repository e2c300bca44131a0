"""A start rule that rewards the use of an aid where it helps, and charges for it where it does not (GeometryZero).

An aid is something in an answer that may or may not help: an auxiliary line in a proof, a written chain of thought, the
call of a tool. Whether it helps with a prompt follows from two sub-groups, one that is made to use it and one without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import TOTAL, RewardOutput
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.start_rules import (
    StartContext,
    StartRule,
    by_label,
    filled,
    labels,
    rows_of_groups,
    selection,
    split_groups,
)

WITH, WITHOUT = "with-aid", "without-aid"
"""The labels of the two sub-groups."""
NAME = "aid"
"""The name of the reward."""


@dataclass(frozen=True)
class AidContrast(StartRule):
    """The reward for an aid is plus or minus `weight`, by its utility for the prompt (GCPO, arXiv:2506.07160).

    Of each group, `forced` answers begin with the aid and `forced` without it. Where the mean total with it is more
    than `margin` above the mean without, the other answers get `weight` for using it, and elsewhere minus `weight`.
    All three sub-groups are trained on, each compared in itself, so that both ways are learnt and their comparison
    stays fair. `when: always` gives the reward to each use and forces nothing.
    """

    used: str
    """A regular expression that is found in answers that use the aid."""
    with_prefix: str = ""
    """The beginning of answers that are made to use it; {prompt} and the names of metadata stand for their texts."""
    without_prefix: str = ""
    """The beginning of answers that are kept from it."""
    with_prompt: str = "{prompt}"
    """The prompt of answers that are made to use it."""
    without_prompt: str = "{prompt}"
    """The prompt of answers that are kept from it."""
    forced: int = 4
    """The answers of each of the two sub-groups; they are part of `data.group_size`."""
    margin: float = 0.0
    """The least advantage of the aid, in total reward, above which it is useful."""
    weight: float = 0.5
    """The reward for an aid that is useful."""
    when: Literal["useful", "always"] = "useful"
    """The prompts whose answers are rewarded for the aid; `useful` charges for it in the others."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.used)
        except re.error as err:
            raise ValueError(f"used: {self.used!r} is no regular expression: {err}") from err
        alike = (self.with_prefix, self.with_prompt) == (self.without_prefix, self.without_prompt)
        if self.when == "useful" and (alike or self.forced < 1):
            raise ValueError(
                "answers with and without the aid need different prompts or prefixes, and one each or more"
            )

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests with two sub-groups of `forced` answers in each group.

        Raises:
            ValueError: no answer of a group is left.
        """
        if self.when == "always":
            return requests
        if any(each.n <= 2 * self.forced for each in requests):
            raise ValueError(f"data.group_size must be above 2 * {self.forced}, the answers that are forced")
        kinds = ((WITH, self.with_prefix, self.with_prompt), (WITHOUT, self.without_prefix, self.without_prompt))
        return split_groups(
            requests,
            [
                replace(each, n=self.forced, start=start_from(label, prefix, prompt, each))
                for each in requests
                for label, prefix, prompt in kinds
            ],
        )

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select all rows, with the reward `aid` in the totals of those that were not forced.

        Metrics: `aid/useful`, the share of prompts for which it is useful, and `aid/use`, that of answers that use it.
        """
        free = torch.tensor([start is None for start in scored.starts])
        uses = torch.tensor([isinstance(text, str) and bool(re.search(self.used, text)) for text in texts(scored)])
        useful = self.utility(scored) > self.margin if self.when == "useful" else torch.ones_like(free)
        reward = self.weight * (uses & free) * (2.0 * useful - 1)
        metrics = {"aid/useful": float(useful[free].float().mean()), "aid/use": float(uses[free].float().mean())}
        output = with_reward(scored.output, NAME, reward)
        return replace(selection(replace(scored, output=output), compared=by_label(scored)), metrics=metrics)

    def utility(self, scored: ScoredRollouts) -> Tensor:
        """Return how much higher totals of the prompt are with the aid than without, [R]; NaN if not known."""
        names, total = labels(scored), scored.total
        found = torch.full_like(total, torch.nan)
        for rows in rows_of_groups(scored).values():
            means = [total[[row for row in rows if names[row] == name]].nanmean() for name in (WITH, WITHOUT)]
            found[rows] = means[0] - means[1]
        return found


def start_from(label: str, prefix: str, prompt: str, request: RolloutRequest) -> RowStart:
    """Return a start with templates of prefix and prompt filled in from the request's sample."""
    return RowStart(
        label,
        prefix=filled(prefix, request.sample),
        prompt=None if prompt == "{prompt}" else filled(prompt, request.sample),
    )


def texts(scored: ScoredRollouts) -> list[object]:
    """Return the answer of each row."""
    return [media for rollout in scored.rollouts for media in rollout.media]


def with_reward(output: RewardOutput, name: str, values: Tensor) -> RewardOutput:
    """Return an output with one more reward [R], which the totals include; an unknown total stays unknown."""
    added = values.numpy().astype(np.float32)
    *before, total = output.values.items()
    assert total[0] == TOTAL
    return replace(
        output,
        values={**dict(before), name: added, TOTAL: total[1] + added},
        status={**output.status, name: [Status.OK] * len(added)},
    )
