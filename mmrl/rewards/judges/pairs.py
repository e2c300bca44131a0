"""Two answers to one prompt: which is better?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from mmrl.rewards.base import InvalidAnswer, PairReward, RewardError, RewardInput, Scored, ScoringFailed
from mmrl.rewards.judges.judge_base import JudgeBase, View
from mmrl.rewards.judges.templates import Part


@dataclass(kw_only=True, eq=False)
class JudgePairs(JudgeBase, PairReward):
    """Mean win rate of an answer over the others to its prompt, each pair judged in both orders.

    In [0, 1]; alone in its group an answer has none and is not scored. A pair that the judge failed on is left out of
    the means. A malformed answer scores 0, and loses against any other without the judge being asked.
    """

    name, kind, usual_prompt = "judge_pairs", "pair", "pair_alignment"
    source = "MT-bench's judge in both orders, arXiv:2306.05685"

    rounds: int | None = None
    """Each round compares every answer with two others, so that requests grow with the group and not with its square.
    None: all pairs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None and self.rounds < 1:
            raise RewardError(f"rounds is {self.rounds}; it must be at least 1, or None for all pairs")

    def compare(self, first: RewardInput, second: RewardInput) -> float:
        """The probability that the judge prefers the first, in this order."""
        return self._prefers(first, self.shown(first), self.shown(second))

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Each answer's mean win rate. Several requests at once."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, and this one is alone in its group", "alone")]
        views = self.views(items)
        whole = {i: view for i, view in enumerate(views) if isinstance(view, list)}
        rates: list[list[float]] = [[] for _ in items]
        asked: list[tuple[int, int]] = []
        for i, j in pairings(len(items), self.rounds):
            if i in whole and j in whole:
                asked += [(i, j), (j, i)]
            for one, other in ((i, j), (j, i)):
                if one in whole and isinstance(views[other], InvalidAnswer):
                    rates[one].append(1.0)
        said = self._endpoint.together([partial(self._prefers, items[i], whole[i], whole[j]) for i, j in asked])
        failed: dict[int, Exception] = {}
        for (i, j), there, back in zip(asked[::2], said[::2], said[1::2], strict=True):
            if isinstance(there, Exception):
                failed[i] = failed[j] = there
            elif isinstance(back, Exception):
                failed[i] = failed[j] = back
            else:
                rates[i].append((there + 1 - back) / 2)
                rates[j].append((back + 1 - there) / 2)
        return [self._score(views[i], rates[i], failed.get(i)) for i in range(len(items))]

    def _score(self, view: View, rates: Sequence[float], failed: Exception | None) -> Scored:
        if isinstance(view, Exception):
            return view
        if rates:
            return sum(rates) / len(rates)
        return failed or ScoringFailed(f"{self.name} had nothing to compare this answer with", "alone")

    def _prefers(self, item: RewardInput, first: Sequence[Part], second: Sequence[Part]) -> float:
        parts = [*self.given(item), "Answer A:\n", *first, "Answer B:\n", *second]
        return self.probability(self._prompt.messages(self.texts(item), parts), "a", "b")


def pairings(size: int, rounds: int | None) -> list[tuple[int, int]]:
    """Pairs (i, j) with i < j: all, or those of each answer and the 1, 2, ... `rounds` places after it, in a circle."""
    steps = range(1, min(size // 2 if rounds is None else rounds, size // 2) + 1)
    return sorted({(min(i, j), max(i, j)) for step in steps for i in range(size) for j in [(i + step) % size]})
