"""All answers to one prompt at once: in which order?"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mmrl.rewards.base import GroupReward, InvalidAnswer, RewardError, RewardInput, Scored, ScoringFailed
from mmrl.rewards.judges import verdicts
from mmrl.rewards.judges.judge_base import JudgeBase
from mmrl.rewards.judges.templates import Part


@dataclass(kw_only=True, eq=False)
class JudgeRanking(JudgeBase, GroupReward):
    """Place of an answer in the order that a judge gives to all answers to its prompt: 1 is the best, 0 the worst.

    In [0, 1], evenly spaced; alone in its group an answer has no place and is not scored. The judge sees the answers
    shuffled; with several `shuffles` it is asked as often, and the places are averaged over the replies that are an
    order. If none is, the group is not scored. A malformed answer scores 0 and is not shown.
    """

    name, kind, usual_prompt = "judge_ranking", "ranking", "ranking_alignment"
    source = "permutation generation of RankGPT, arXiv:2304.09542"

    shuffles: int = 1
    """Requests a group, each in another order: what the judge thinks of places averages out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffles < 1:
            raise RewardError(f"shuffles is {self.shuffles}; it must be at least 1")

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Each answer's place."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, and this one is alone in its group", "alone")]
        views = self.views(items)
        scored: list[Scored] = [view if isinstance(view, Exception) else 1.0 for view in views]
        whole = [(row, view) for row, view in enumerate(views) if not isinstance(view, Exception)]
        below = sum(isinstance(view, InvalidAnswer) for view in views)  # what a whole answer beats unseen
        if len(whole) < 2:
            alone = ScoringFailed(f"{self.name} had nothing to compare this answer with", "alone")
            return scored if below else [alone if value == 1.0 else value for value in scored]
        orders = shuffled(len(whole), self.shuffles, f"{self.seed} {items[0].prompt}")
        calls = [partial(self._places, items[whole[0][0]], [view for _, view in whole], order) for order in orders]
        said = self._endpoint.together(calls)
        places = [each for each in said if not isinstance(each, Exception)]
        if not places:
            raise next(each for each in said if isinstance(each, Exception))
        last = len(whole) + below - 1
        for i, (row, _) in enumerate(whole):
            scored[row] = 1 - sum(each[i] for each in places) / len(places) / last
        return scored

    def _places(self, item: RewardInput, views: Sequence[Sequence[Part]], order: Sequence[int]) -> list[int]:
        """The place of each answer, 0 the best, when they are shown in this order."""
        parts = self.given(item)
        for number, i in enumerate(order, start=1):
            parts += [f"Answer {number}:\n", *views[i]]
        messages = self._prompt.messages(self.texts(item) | {"count": str(len(views))}, parts)
        best_first = verdicts.order(self.written(messages), len(views))
        places = [0] * len(views)
        for place, number in enumerate(best_first):
            places[order[number]] = place
        return places


def shuffled(size: int, times: int, key: str) -> list[list[int]]:
    """That many orders of 0 to size - 1, the same for the same key."""
    random_order = random.Random(hashlib.sha256(key.encode("utf-8", "replace")).digest())
    return [random_order.sample(range(size), size) for _ in range(times)]
