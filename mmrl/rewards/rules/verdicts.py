"""Rewards for judges of pairs: is the verdict right, also without thoughts or with the answers in other places?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from mmrl.rewards.core.reward import Reward, RowsReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.parsing.final_answer import AnswerFormat, final_answer, resolve_form
from mmrl.rewards.rules.multiple_choice import picked
from mmrl.rewards.rules.reference_likelihood import columns, model_of, query

VERDICTS = ("A", "B")
"""The verdicts: the answer in the first place is better, or the one in the second."""
_OPTIONS = dict.fromkeys(VERDICTS, "")


def read_verdict(text: str, form: AnswerFormat = "auto") -> str:
    """Return the letter that a judge's text ends with, A or B, after its thoughts.

    Raises:
        InvalidAnswer: there is no verdict, or several.
    """
    return picked(final_answer(text, form), _OPTIONS)


class Verdict(Reward):
    """1 if a judge names the better answer of a pair, else 0; `references.answer` is its letter, A or B.

    `chose_first`, a further score, is 1 for the verdict A: its mean is 0.5 for a judge without a preference for a
    place, if each pair comes in both orders.
    """

    name, needs, range = "verdict", ("text", "references.answer"), (0.0, 1.0)
    source = "pairwise accuracy of generative reward models, arXiv:2505.03318"

    def __init__(self, form: AnswerFormat = "auto") -> None:
        self.form = form

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        verdict = read_verdict(item.text or "", resolve_form(item, self.form))
        return {self.name: float(verdict == _right_verdict(item)), "chose_first": float(verdict == VERDICTS[0])}


class BothOrders(RowsReward):
    """1 if a judge names the better answer of a pair in both orders, else 0: a verdict that depends on places is none.

    The other order is that sample of the same batch which has the same `references.pair` and the other letter as its
    answer; with several answers to each, the first is matched with the first. So it is for evaluations, which score
    all samples at once; an answer whose other order is not in the batch is not scored (`alone`).

    `consistent`, a further score, is 1 if both verdicts name the same answer, right or wrong.
    """

    name, needs, range = "both_orders", ("text", "references.answer", "references.pair"), (0.0, 1.0)
    source = "consistent accuracy in both orders, as in MT-bench, arXiv:2306.05685"
    scheduled = True  # a score depends on the other order's answer too, so none is cached

    def __init__(self, form: AnswerFormat = "auto") -> None:
        self.form = form

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Match the answers to both orders of each pair, and score each two of them alike."""
        rows: dict[str, dict[str, list[int]]] = defaultdict(lambda: {letter: [] for letter in VERDICTS})
        scored: list[Scored] = [ScoringFailed(f"{self.name}: the other order is missing", "alone") for _ in items]
        for row, item in enumerate(items):
            try:
                rows[str(item.references["pair"])][_right_verdict(item)].append(row)
            except ScoringFailed as err:
                scored[row] = err
        for both in rows.values():
            for two in zip(*both.values(), strict=False):
                for row in two:
                    scored[row] = self._together([items[each] for each in two])
        return scored

    def _together(self, items: Sequence[RewardInput]) -> Mapping[str, float]:
        """Return the scores of the answers to the two orders of a pair."""
        right = []
        for item in items:
            try:
                right.append(read_verdict(item.text or "", resolve_form(item, self.form)) == _right_verdict(item))
            except InvalidAnswer:
                return {self.name: 0.0, "consistent": 0.0}
        return {self.name: float(all(right)), "consistent": float(right[0] == right[1])}


def _right_verdict(item: RewardInput) -> str:
    right = item.references["answer"]
    if right not in VERDICTS:
        raise ScoringFailed(f"references.answer is {right!r:.60}; a judge's is {' or '.join(VERDICTS)}", "reference")
    return str(right)


class DirectVerdict(RowsReward):
    """P(right verdict) / (P(right) + P(wrong)) after empty thoughts, by a model of the run; the answer is not read.

    A judge that was trained to think may also have learnt to decide at once (arXiv:2505.03318): this measures it.
    """

    name, needs, range = "direct_verdict", ("references.answer", "sample"), (0.0, 1.0)
    source = "p(y* | x, no thoughts), normalised over both verdicts"

    def __init__(self, model: str = "policy", direct: str = "<think></think>") -> None:
        """
        Args:
            model: a model of the run.
            direct: the beginning of an answer without thoughts.
        """
        self.models, self.direct = (model,), direct

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in few calls of the model."""
        model = model_of(context, self.models[0])
        found = columns(model, [query(item, letter, self.direct) for item in items for letter in VERDICTS])
        scored: list[Scored] = []
        for row, item in enumerate(items):
            both = found[2 * row : 2 * row + 2]
            if fault := next((each for each in both if isinstance(each, Exception)), None):
                scored.append(fault)
                continue
            first, second = (float(np.sum(each)) for each in both if not isinstance(each, Exception))
            right = 1 / (1 + float(np.exp(second - first)))
            scored.append(right if item.references["answer"] == VERDICTS[0] else 1 - right)
        return scored
