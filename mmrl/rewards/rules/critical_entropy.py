"""The entropy of critical reasoning tokens: a measure of how open a policy is where it turns in its reasoning."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import NotApplicable, RewardError
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rewards.rules.reference_likelihood import model_of

WORDS = ("Wait", "Alternatively", "Hmm", "However")
"""Words that begin a turn in the reasoning of language models."""


class CriticalEntropy(RowsReward):
    """The mean entropy of the token that begins a critical word of an answer, or follows it, in nats (Skywork-R1V3).

    A model that only imitates the tone of reasoning writes `Wait` and the like without any doubt, and one that reasons
    could have gone on otherwise. It is a measure, not to be trained on, by which a checkpoint can be chosen without
    labels (`evaluation.best: critical_entropy`, arXiv:2507.06167). An answer without a critical word is not measured:
    the mean is over the others. `critical_entropy_words` is the number of critical words of an answer that has any.
    """

    name, needs, range = "critical_entropy", ("text", "sample"), (0.0, math.inf)
    source = "mean H(· | x, y_<t) over the critical tokens y_t"

    def __init__(self, words: Sequence[str] = WORDS, place: str = "at", model: str = "policy") -> None:
        """
        Args:
            words: texts at which the reasoning may turn, as they are written, case included.
            place: `at`: the token that begins a word. `after`: the token that follows it.
            model: a model of the run; `policy` is the policy as it is now.
        """
        if isinstance(words, str) or not words or not all(words):
            raise RewardError(f"{self.name}: words is {words!r}; it is a list of texts, such as [Wait, Alternatively]")
        if place not in ("at", "after"):
            raise RewardError(f"{self.name}: place is {place!r}; it is at or after")
        self.models, self._after = (model,), place == "after"
        self._words = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in few calls of the model."""
        queries = [list(self._queries(item)) for item in items]
        found = iter(model_of(context, self.models[0]).entropies([each for row in queries for each in row]))
        return [self._value([float(next(found)[0]) for _ in row]) for row in queries]

    def _queries(self, item: RewardInput) -> Iterator[TextQuery]:
        """Yield the beginnings of an answer that end before a critical token."""
        text = item.text or ""
        assert item.sample is not None  # `needs` says so
        for match in self._words.finditer(text):
            yield TextQuery(item.sample, "", prefix=text[: match.end() if self._after else match.start()])

    def _value(self, entropies: Sequence[float]) -> Scored:
        if not entropies:
            return NotApplicable("the answer has no critical word")
        return {self.name: float(np.mean(entropies)), f"{self.name}_words": float(len(entropies))}
