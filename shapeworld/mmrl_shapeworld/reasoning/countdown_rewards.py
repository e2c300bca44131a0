"""The reward of a solved puzzle of `countdown`, and how many different solutions a group of answers has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrl.rewards.core.reward import GroupReward, Reward, Scored
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.countdown import Puzzle, solves


class CountdownSolved(Reward):
    """1 for a calculation with the numbers of the prompt that ends with its target, else 0."""

    name, needs, range = "solved", ("text", "references.answer", "references.numbers"), (0.0, 1.0)
    source = "arithmetic modulo 10"

    def score_one(self, item: RewardInput) -> float:
        return float(is_solution(item))


class DistinctSolutions(GroupReward):
    """The number of different solutions among the answers to a prompt, divided among the answers that are one.

    Its sum over the answers to a prompt is that number, and its mean the number over that of answers.
    """

    name, needs, range = "distinct", ("text", "references.answer", "references.numbers"), (0.0, 1.0)
    source = "1[solved] / the number of answers with the same text"

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        texts = [(item.text or "").strip() if is_solution(item) else None for item in items]
        counts = Counter(texts)
        return [0.0 if text is None else 1 / counts[text] for text in texts]


def is_solution(item: RewardInput) -> bool:
    """Return whether an answer solves its puzzle."""
    puzzle = Puzzle(tuple(item.references["numbers"]), int(item.references["answer"]))
    return solves((item.text or "").strip(), puzzle)
