"""One answer, one question: how sure is the judge that it is good?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mmrl.rewards.base import RewardContext, RewardInput, Scored
from mmrl.rewards.judges import verdicts
from mmrl.rewards.judges.judge_base import JudgeBase

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
