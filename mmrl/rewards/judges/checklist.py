"""One answer, several questions of yes or no."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmrl.rewards.base import RewardError, RewardInput, ScoringFailed
from mmrl.rewards.judges.judge_base import JudgeBase
from mmrl.rewards.judges.point import NO, YES
from mmrl.rewards.judges.templates import between

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
