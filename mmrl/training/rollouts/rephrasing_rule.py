"""A start rule of two phrasings of each prompt, so that the answers to one can label those to the other (Co-Reward).

With the reward `majority` and `voters: others`, what most answers to the prompt in other words say is the label of the
answers to the prompt, and back. No label is needed, and a guess that depends on the wording is not confirmed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.contrast_rule import start_from
from mmrl.training.rollouts.start_rules import StartContext, StartRule, by_label, selection, split_groups

LABEL = "rephrased"
"""The label of the answers to the prompt in other words."""


@dataclass(frozen=True)
class Rephrasing(StartRule):
    """Half of the answers of each group are to the prompt in other words (Co-Reward, arXiv:2508.00410).

    Both halves are trained on, each compared in itself, as answers to two prompts. Rewards that compare the answers of
    a group see both.
    """

    prompt: str = "{rephrased}"
    """The prompt in other words; {rephrased}, {prompt} and the names of other metadata stand for their texts."""

    def __post_init__(self) -> None:
        if self.prompt.strip() in ("", "{prompt}"):
            raise ValueError(
                f"prompt is {self.prompt!r}; expected other words than the sample's, such as {{rephrased}}"
            )

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests, each followed by one of as many answers to the prompt in other words.

        Raises:
            ValueError: a group cannot be halved.
            DataError: a sample has no other words.
        """
        if odd := next((each.n for each in requests if each.n % 2), None):
            raise ValueError(f"data.group_size is {odd}; expected an even number, a half for each phrasing")
        halves = [replace(each, n=each.n // 2, start=start_from(LABEL, "", self.prompt, each)) for each in requests]
        return split_groups(requests, halves)

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select all rows, the two halves of a group compared apart."""
        return selection(scored, compared=by_label(scored))
