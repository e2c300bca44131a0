"""Partial solutions of the policy's own best answers as further starting states (ReST-GRPO of ReST-RL).

arXiv:2508.19576 samples a few answers to each prompt before it trains. It leaves out prompts whose rewards hardly vary,
and adds beginnings of their best answers as further states, from which whole groups are sampled: a state in the
middle of a solution that is seldom found is one whose rewards do vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms.groups import group_std
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.start_rules import StartContext, StartRule, rounds_of, rows_of_groups, selection

LABEL = "partial"


@dataclass(frozen=True)
class PartialSolutions(StartRule):
    """Prompts whose rewards vary are trained on, and so are groups that begin with parts of their best answers.

    The first round answers each prompt. Groups whose total rewards have a standard deviation below `min_std` are left
    out. Where the best answer of another group has a total of at least `accept`, `share` of its beginnings, which end
    after a step, become states: each gets one more group in the second round, compared in itself, in which only
    what the policy writes after the beginning is learnt from. If all groups are left out, all are trained on, without
    advantages.
    """

    min_std: float = 0.05
    """The least standard deviation of a group's total rewards, with which its prompt is trained on."""
    accept: float = 0.9
    """The least total of an answer whose beginnings become states."""
    share: float = 0.5
    """The states of an answer, as a share of its beginnings, rounded up."""
    decay: float = 0.95
    """The odds of a beginning over those of the one that is a step shorter."""
    step_end: str = "\n"
    """The text that ends a step of an answer."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not 0 < self.decay <= 1 or self.min_std <= 0 or not self.step_end:
            raise ValueError("share and decay are above 0 and at most 1, min_std is above 0, and step_end is some text")

    def more(self, scored: ScoredRollouts, context: StartContext) -> list[RolloutRequest]:
        """Return a request for each state, as large as the group that it comes from; none after the second round."""
        if len(scored.round_sizes) > 1:
            return []
        texts = [str(text) for rollout in scored.rollouts for text in rollout.media]
        varied, totals, samples = self.varied(scored), scored.total.nan_to_num(-math.inf), scored.samples
        groups, found = rows_of_groups(scored), []
        for rows in groups.values():
            best = max(rows, key=totals.__getitem__)
            if varied[best] and totals[best] >= self.accept:
                states = self.states(texts[best], context.rng)
                found += [(samples[best], len(rows), RowStart(LABEL, prefix=state)) for state in states]
        first = max(groups) + 1
        return [RolloutRequest(each, n, first + place, start) for place, (each, n, start) in enumerate(found)]

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select the groups of prompts whose rewards vary, and those of states.

        Metrics: `partial/prompts`, the share of prompts that are trained on, and `partial/states`, the number of
        states.
        """
        varied, second = self.varied(scored), rounds_of(scored) > 0
        trained = (varied | second) if varied.any() else torch.ones_like(varied)
        groups = scored.group_index
        metrics = {
            "partial/prompts": len(groups[varied & ~second].unique()) / len(groups[~second].unique()),
            "partial/states": float(len(groups[second].unique())),
        }
        return replace(selection(scored, trained=trained), metrics=metrics)

    def varied(self, scored: ScoredRollouts) -> Tensor:
        """Return [R] bool: True where the standard deviation of the row's group is at least `min_std`."""
        return group_std(scored.total, scored.group_index, ddof=0).nan_to_num(0.0) >= self.min_std

    def states(self, text: str, rng: np.random.Generator) -> Sequence[str]:
        """Return beginnings of an answer, drawn without replacement; none of an answer of a single step."""
        found = beginnings(text, self.step_end)
        if not found:
            return ()
        odds = self.decay ** np.arange(len(found))
        count = math.ceil(self.share * len(found))
        places = rng.choice(len(found), count, replace=False, p=odds / odds.sum())
        return [found[place] for place in sorted(places.tolist())]


def beginnings(text: str, step_end: str) -> list[str]:
    """Return the beginnings of a text that end after a step, each a step longer than the one before; never all of it.

    >>> beginnings("3+4=7;7-2=5;5", ";")
    ['3+4=7;', '3+4=7;7-2=5;']
    """
    parts = text.split(step_end)
    found = ["".join(part + step_end for part in parts[:count]) for count in range(1, len(parts))]
    return [each for each in found if each != text]
