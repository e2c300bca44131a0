"""The reward of MathVista: the comparison of its scoring script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import final_answer, resolve_form, single_stated_answer

_LETTER = re.compile(r"\(([a-zA-Z])\)")
_BARE = re.compile(r"([A-Za-z])[.:)]?")


class MathVista(Reward):
    """1 if an answer to one of MathVista's problems is the true one as its own script compares them, else 0.

    References: `answer` (a text), `question_type`, `answer_type`, and `choices` or `precision` if the type needs them.

    * multi_choice: a letter selects its option; any other text selects the option nearest to it by edit distance, so
      that every answer selects one, as published;
    * integer: a number, truncated to a whole one; float: a number, rounded to `precision` decimals;
    * text and list: exactly the same text.

    MathVista extracts the answer with GPT-4. Here rules do it: \\boxed{}, tags, "the answer is", or else the whole
    text. Besides a letter in brackets, as published, "B." and "b" are accepted.
    """

    name, needs, range = "mathvista", ("text", "references.answer", "references.question_type"), (0.0, 1.0)
    source = "MathVista, arXiv:2310.02255; lupantech/MathVista evaluation/calculate_score.py"

    def score_one(self, item: RewardInput) -> float:
        known = item.references
        answer, kind = known["answer"], known["question_type"]
        if not isinstance(answer, str):
            raise ScoringFailed(f"references.answer is {answer!r:.60}; expected a text", "reference")
        stated = single_stated_answer(final_answer(item.text or "", resolve_form(item)))
        if kind == "multi_choice":
            return float(selected_choice(stated, _choices(known.get("choices"))) == answer)
        return float(normalised(stated, str(known.get("answer_type", "text")), known.get("precision")) == answer)


def selected_choice(text: str, choices: Sequence[str]) -> str:
    """Return the option that a text selects: by its letter, or the nearest by edit distance (the first of several)."""
    from rapidfuzz.distance import Levenshtein

    found = _LETTER.search(text) or _BARE.fullmatch(text)
    letter = found[1].upper() if found else ""
    if letter and ord(letter) - ord("A") < len(choices):
        return choices[ord(letter) - ord("A")]
    return min(choices, key=lambda choice: Levenshtein.distance(text, choice))


def normalised(text: str, answer_type: str, precision: float | None) -> str | None:
    """Return a text in MathVista's notation of the answer type; None if it is not of that type."""
    if answer_type not in ("integer", "float"):
        return text
    try:
        value = float(text)
        return str(int(value)) if answer_type == "integer" else str(round(value, int(precision or 0)))
    except (ValueError, OverflowError):
        return None


def _choices(choices: object) -> Sequence[str]:
    if isinstance(choices, list | tuple) and choices and all(isinstance(each, str) for each in choices):
        return choices
    raise ScoringFailed(f"references.choices is {choices!r:.60}; expected a list of texts", "reference")
