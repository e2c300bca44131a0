"""One answer, one question: how sure is the judge that it is good?"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmrl.rewards.core.reward import GroupReward, PairReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.judges import verdicts
from mmrl.rewards.judges.judge_base import JudgeBase, View
from mmrl.rewards.judges.templates import Part, between

YES, NO = "yes", "no"


class Judge(JudgeBase):
    """P(yes) / (P(yes) + P(no)) that a vision-language model behind an OpenAI-compatible endpoint gives to a question.

    In [0, 1]. From the log-probabilities of the first token, summed over spellings; where the server gives none, from
    the text: 1 for "yes" and 0 for "no". A prompt with a scale asks for a number instead, mapped to [0, 1]. A reply
    that is neither is a failure of the judge ("unparseable", NaN).

        load("judge", model="Qwen/Qwen2.5-VL-7B-Instruct", prompt="alignment")
    """

    name, kind, usual_prompt = "judge", "point", "alignment"
    source = "VQAScore's P(yes), arXiv:2404.01291, normalised over both words"

    def score_one(self, item: RewardInput) -> float:
        """The judge's verdict on one answer."""
        shown = self.shown(item)
        messages = self._prompt.messages(self.texts(item), [*self.given(item), *shown])
        if self._prompt.scale is None:
            return self.probability(messages, YES, NO)
        low, high = self._prompt.scale
        return (verdicts.number(self.written(messages), low, high) - low) / (high - low)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Several requests at once."""
        return self._endpoint.together([partial(self.score_one, item) for item in items])


# One answer, several questions of yes or no.


MOST_QUESTIONS = 100


@dataclass(kw_only=True, eq=False)
class JudgeChecklist(JudgeBase):
    """Weighted share of yes/no questions about an answer to which a judge says yes.

    In [0, 1]. The questions are the reward's own (`questions`), or those of each sample (`references["questions"]`): a
    list of texts, or of {"question": text, "weight": a number above 0}. Where the judge fails on one of them, the
    answer is not scored at all.

        load("judge_checklist", model="Qwen/Qwen2.5-VL-7B-Instruct", questions=["Is there a dog?", "Is it red?"])
    """

    name, kind, usual_prompt = "judge_checklist", "checklist", "checklist"
    source = "TIFA, arXiv:2303.11897; Davidsonian Scene Graph, arXiv:2310.18235"

    questions: Sequence[str | Mapping[str, Any]] = ()
    """Empty: each sample brings its own."""
    soft: bool = False
    """Take each question's probability of yes, instead of 1 above one half and 0 below."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own = _weighed(self.questions) if self.questions else None
        if self.questions and self._own is None:
            raise RewardError(f"questions is {self.questions!r:.200}; {_DUE}")

    def score_one(self, item: RewardInput) -> float:
        """The share of yes. All questions are asked at once."""
        questions = self._own or self._of_sample(item)
        shown, texts = [*self.given(item), *self.shown(item)], self.texts(item)
        asked = [self._prompt.messages(texts | {"question": between("question", q)}, shown) for q in questions]
        said = self._endpoint.together([partial(self.probability, each, YES, NO) for each in asked])
        total = 0.0
        for weight, answer in zip(questions.values(), said, strict=True):
            if isinstance(answer, Exception):
                raise answer
            total += weight * (answer if self.soft else float(answer > 0.5))
        return total / sum(questions.values())

    def _of_sample(self, item: RewardInput) -> dict[str, float]:
        held = item.references.get("questions")
        if held is None:
            raise ScoringFailed(f"{self.name} needs questions, its own or in references.questions", "missing")
        questions = _weighed(held)
        if questions is None:
            raise ScoringFailed(f"references.questions is {held!r:.200}; {_DUE}", "reference")
        return questions


_DUE = f"it is a list of 1 to {MOST_QUESTIONS} different texts, or of {{'question': text, 'weight': number above 0}}"


def _weighed(held: Any) -> dict[str, float] | None:
    """{question: weight}; None for anything that is no list of questions."""
    if not isinstance(held, list | tuple) or not 0 < len(held) <= MOST_QUESTIONS:
        return None
    found: dict[str, float] = {}
    for entry in held:
        question, weight = (
            (entry.get("question"), entry.get("weight", 1.0)) if isinstance(entry, Mapping) else (entry, 1.0)
        )
        if not isinstance(question, str) or not question.strip() or question in found:
            return None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            return None
        found[question] = float(weight)
    return found


# Two answers to one prompt: which is better?


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


# All answers to one prompt at once: in which order?


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
