"""The four judges: one answer and one question, a checklist of questions, pairs of answers, a ranking of a group."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mmrl.rewards.core.picture_drawing import lacks_sample, painter_of
from mmrl.rewards.core.reward import GroupReward, PairReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.judges.judge_base import AnswerView, JudgeBase
from mmrl.rewards.judges.replies import parse_number, parse_order
from mmrl.rewards.judges.templates import MessagePart, tagged

YES, NO = "yes", "no"
MAX_QUESTIONS = 100
_REQUIRED = (
    f"it must be a list of 1 to {MAX_QUESTIONS} different texts, or of {{'question': text, 'weight': number above 0}}"
)


class Judge(JudgeBase):
    """P(yes) / (P(yes) + P(no)) that a vision-language model behind an OpenAI-compatible endpoint gives to a question.

    In [0, 1]. Computed from the log-probabilities of the first token, summed over spellings; if the server gives none,
    from the text: 1 for "yes" and 0 for "no". A prompt with a scale asks for a number instead, mapped to [0, 1]. A
    reply that is neither is a failure of the judge ("unparseable", NaN).

        load("judge", model="Qwen/Qwen2.5-VL-7B-Instruct", prompt="alignment")
    """

    name, kind, default_prompt = "judge", "point", "alignment"
    source = "VQAScore's P(yes), arXiv:2404.01291, normalised over both words"

    def score_one(self, item: RewardInput) -> float:
        answer = self.answer_parts(item)
        messages = self._prompt.messages(self.prompt_texts(item), [*self.source_parts(item), *answer])
        if self._prompt.scale is None:
            return self.probability(messages, YES, NO)
        low, high = self._prompt.scale
        return (parse_number(self.judge_text(messages), low, high) - low) / (high - low)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        return self._endpoint.run_all([partial(self.score_one, item) for item in items])


@dataclass(kw_only=True, eq=False)
class JudgeChecklist(JudgeBase):
    """Weighted share of yes/no questions about an answer to which a judge says yes.

    In [0, 1]. The questions are the argument `questions`, or those of each sample (`references["questions"]`): a list
    of texts, or of {"question": text, "weight": a number above 0}. If the judge fails on one of them, the answer is
    not scored.

        load("judge_checklist", model="Qwen/Qwen2.5-VL-7B-Instruct", questions=["Is there a dog?", "Is it red?"])
    """

    name, kind, default_prompt = "judge_checklist", "checklist", "checklist"
    source = "TIFA, arXiv:2303.11897; Davidsonian Scene Graph, arXiv:2310.18235"

    questions: Sequence[str | Mapping[str, Any]] = ()
    """The questions for all samples; empty means those of each sample."""
    soft: bool = False
    """True sums each question's probability of yes; False counts 1 if it is above one half, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._questions = _question_weights(self.questions) if self.questions else None
        if self.questions and self._questions is None:
            raise RewardError(f"questions is {self.questions!r:.200}; {_REQUIRED}")

    def score_one(self, item: RewardInput) -> float:
        """Return the share of yes, from concurrent requests for all questions."""
        questions = self._questions or self._of_sample(item)
        parts, texts = [*self.source_parts(item), *self.answer_parts(item)], self.prompt_texts(item)
        requests = [self._prompt.messages(texts | {"question": tagged("question", q)}, parts) for q in questions]
        replies = self._endpoint.run_all([partial(self.probability, each, YES, NO) for each in requests])
        total = 0.0
        for weight, answer in zip(questions.values(), replies, strict=True):
            if isinstance(answer, Exception):
                raise answer
            total += weight * (answer if self.soft else float(answer > 0.5))
        return total / sum(questions.values())

    def _of_sample(self, item: RewardInput) -> dict[str, float]:
        listed = item.references.get("questions")
        if listed is None:
            raise ScoringFailed(f"{self.name} needs questions, as an argument or in references.questions", "missing")
        questions = _question_weights(listed)
        if questions is None:
            raise ScoringFailed(f"references.questions is {listed!r:.200}; {_REQUIRED}", "reference")
        return questions


def _question_weights(listed: Any) -> dict[str, float] | None:
    """Return {question: weight}; None if `listed` is not a list of questions."""
    if not isinstance(listed, list | tuple) or not 0 < len(listed) <= MAX_QUESTIONS:
        return None
    found: dict[str, float] = {}
    for entry in listed:
        question, weight = (
            (entry.get("question"), entry.get("weight", 1.0)) if isinstance(entry, Mapping) else (entry, 1.0)
        )
        if not isinstance(question, str) or not question.strip() or question in found:
            return None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            return None
        found[question] = float(weight)
    return found


@dataclass(kw_only=True, eq=False)
class JudgePairs(JudgeBase, PairReward):
    """Mean win rate of an answer over the others to its prompt, each pair judged in both orders.

    In [0, 1]; the only answer in a group is not scored. A pair on which the judge failed is left out of the means. A
    malformed answer scores 0, and loses against any other without a request. With a `reference`, an answer is compared
    with a picture of that model instead, as in OneReward (arXiv:2508.21066).
    """

    name, kind, default_prompt = "judge_pairs", "pair", "pair_alignment"
    source = "MT-bench's judge in both orders, arXiv:2306.05685"

    rounds: int | None = None
    """Rounds in which every answer is compared with two others, so that requests grow linearly with the group; None
    means all pairs."""
    reference: str = ""
    """The model of the run that draws what answers are compared with, such as a snapshot of the policy. Empty means the
    other answers of the group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None and self.rounds < 1:
            raise RewardError(f"rounds is {self.rounds}; it must be at least 1, or None for all pairs")
        if self.rounds is not None and self.reference:
            raise RewardError("rounds is of pairs in a group, and reference takes their place: leave one of them out")
        if self.reference:
            self.models = self.painters = (self.reference,)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        return self._against_reference(items, context) if self.reference else super().score_rows(items, context)

    def _against_reference(self, items: Sequence[RewardInput], context: RewardContext) -> list[Scored]:
        """Return the probability that each answer beats the reference's picture, from two requests for each."""
        views = self.answer_views(items)
        lacking = lacks_sample(self.name)
        valid = {
            row: view for row, view in enumerate(views) if isinstance(view, list) and items[row].sample is not None
        }
        samples = [sample for row in valid if (sample := items[row].sample) is not None]
        drawn = painter_of(context, self.reference).pictures(samples, context.seed)
        calls = [
            partial(self._win_rate, items[row], valid[row], each) for row, (each,) in zip(valid, drawn, strict=True)
        ]
        rates: dict[int, Scored] = dict(zip(valid, self._endpoint.run_all(calls), strict=True))
        return [rates.get(row, view if isinstance(view, Exception) else lacking) for row, view in enumerate(views)]

    def _win_rate(self, item: RewardInput, view: Sequence[MessagePart], drawn: Any) -> float:
        """Return the mean preference for an answer, in both orders, over a picture or video of the reference."""
        image, video = (None, drawn) if isinstance(drawn, list) else (drawn, None)
        other = self.answer_parts(replace(item, text=None, image=image, video=video))
        return (self._preference(item, view, other) + 1 - self._preference(item, other, view)) / 2

    def compare(self, first: RewardInput, second: RewardInput) -> float:
        return self._preference(first, self.answer_parts(first), self.answer_parts(second))

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return each answer's mean win rate, from concurrent requests."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, but this group has only one", "alone")]
        views = self.answer_views(items)
        valid = {i: view for i, view in enumerate(views) if isinstance(view, list)}
        rates: list[list[float]] = [[] for _ in items]
        ordered: list[tuple[int, int]] = []
        for i, j in pair_indices(len(items), self.rounds):
            if i in valid and j in valid:
                ordered += [(i, j), (j, i)]
            for one, other in ((i, j), (j, i)):
                if one in valid and isinstance(views[other], InvalidAnswer):
                    rates[one].append(1.0)
        replies = self._endpoint.run_all([partial(self._preference, items[i], valid[i], valid[j]) for i, j in ordered])
        failed: dict[int, Exception] = {}
        for (i, j), there, back in zip(ordered[::2], replies[::2], replies[1::2], strict=True):
            if isinstance(there, Exception):
                failed[i] = failed[j] = there
            elif isinstance(back, Exception):
                failed[i] = failed[j] = back
            else:
                rates[i].append((there + 1 - back) / 2)
                rates[j].append((back + 1 - there) / 2)
        return [self._score(views[i], rates[i], failed.get(i)) for i in range(len(items))]

    def _score(self, view: AnswerView, rates: Sequence[float], failed: Exception | None) -> Scored:
        if isinstance(view, Exception):
            return view
        if rates:
            return sum(rates) / len(rates)
        return failed or ScoringFailed(f"{self.name} had no other answer to compare this one with", "alone")

    def _preference(self, item: RewardInput, first: Sequence[MessagePart], second: Sequence[MessagePart]) -> float:
        parts = [*self.source_parts(item), "Answer A:\n", *first, "Answer B:\n", *second]
        return self.probability(self._prompt.messages(self.prompt_texts(item), parts), "a", "b")


def pair_indices(size: int, rounds: int | None) -> list[tuple[int, int]]:
    """Return pairs (i, j) with i < j: all, or each answer with those 1, 2, ... `rounds` places after it, cyclically."""
    steps = range(1, min(size // 2 if rounds is None else rounds, size // 2) + 1)
    return sorted({(min(i, j), max(i, j)) for step in steps for i in range(size) for j in [(i + step) % size]})


@dataclass(kw_only=True, eq=False)
class JudgeRanking(JudgeBase, GroupReward):
    """Rank of an answer in the order that a judge gives to all answers to its prompt: 1 is the best, 0 the worst.

    In [0, 1], evenly spaced; the only answer in a group is not scored. Answers are sent in a random order; with several
    `shuffles` there is a request for each, and ranks are averaged over the replies that are a valid order. If none is,
    the group is not scored. A malformed answer scores 0 and is not sent.
    """

    name, kind, default_prompt = "judge_ranking", "ranking", "ranking_alignment"
    source = "permutation generation of RankGPT, arXiv:2304.09542"

    shuffles: int = 1
    """Requests per group, each in another order, which averages out the judge's position bias."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffles < 1:
            raise RewardError(f"shuffles is {self.shuffles}; it must be at least 1")

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return 1 minus each answer's mean rank, scaled to [0, 1]."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, but this group has only one", "alone")]
        views = self.answer_views(items)
        scored: list[Scored] = [view if isinstance(view, Exception) else 1.0 for view in views]
        valid = [(row, view) for row, view in enumerate(views) if not isinstance(view, Exception)]
        below = sum(isinstance(view, InvalidAnswer) for view in views)  # ranked below all valid answers
        if len(valid) < 2:
            single = ScoringFailed(f"{self.name} had no other answer to compare this one with", "alone")
            return scored if below else [single if value == 1.0 else value for value in scored]
        orders = shuffled_orders(len(valid), self.shuffles, f"{self.seed} {items[0].prompt}")
        calls = [partial(self._ranks, items[valid[0][0]], [view for _, view in valid], order) for order in orders]
        replies = self._endpoint.run_all(calls)
        places = [each for each in replies if not isinstance(each, Exception)]
        if not places:
            raise next(each for each in replies if isinstance(each, Exception))
        last = len(valid) + below - 1
        for i, (row, _) in enumerate(valid):
            scored[row] = 1 - sum(each[i] for each in places) / len(places) / last
        return scored

    def _ranks(self, item: RewardInput, views: Sequence[Sequence[MessagePart]], order: Sequence[int]) -> list[int]:
        """Return the rank of each answer, 0 the best, from a request that lists them in `order`."""
        parts = self.source_parts(item)
        for number, i in enumerate(order, start=1):
            parts += [f"Answer {number}:\n", *views[i]]
        messages = self._prompt.messages(self.prompt_texts(item) | {"count": str(len(views))}, parts)
        best_first = parse_order(self.judge_text(messages), len(views))
        places = [0] * len(views)
        for place, number in enumerate(best_first):
            places[order[number]] = place
        return places


def shuffled_orders(size: int, times: int, key: str) -> list[list[int]]:
    """Return `times` random orders of 0 to size - 1, the same for the same key."""
    rng = random.Random(hashlib.sha256(key.encode("utf-8", "replace")).digest())
    return [rng.sample(range(size), size) for _ in range(times)]
