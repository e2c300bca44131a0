"""MathVista's rule for whether an answer is right."""

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

    References: `answer` (a text), `question_type`, `answer_type`, and `choices` or `precision` where they belong.

    * multi_choice: a letter stands for its option; any other text for the option that is nearest to it by edit
      distance, so that every answer picks one, as published;
    * integer: a number, cut off to a whole one; float: a number, rounded to `precision` decimals;
    * text and list: the very same text.

    MathVista has GPT-4 take the answer out of what a model writes. Here that is done by rules: \\boxed{}, tags, "the
    answer is", or else the whole text. Beside a letter in brackets, as published, "B." and "b" are read too.
    """

    name, needs, range = "mathvista", ("text", "references.answer", "references.question_type"), (0.0, 1.0)
    source = "MathVista, arXiv:2310.02255; lupantech/MathVista evaluation/calculate_score.py"

    def score_one(self, item: RewardInput) -> float:
        known = item.references
        answer, kind = known["answer"], known["question_type"]
        if not isinstance(answer, str):
            raise ScoringFailed(f"references.answer is {answer!r:.60}; a text is due", "reference")
        said = single_stated_answer(final_answer(item.text or "", resolve_form(item)))
        if kind == "multi_choice":
            return float(picked(said, _choices(known.get("choices"))) == answer)
        return float(normalised(said, str(known.get("answer_type", "text")), known.get("precision")) == answer)


def picked(said: str, choices: Sequence[str]) -> str:
    """The option that a text picks: by its letter, or the nearest by edit distance (the first of several)."""
    from rapidfuzz.distance import Levenshtein

    found = _LETTER.search(said) or _BARE.fullmatch(said)
    letter = found[1].upper() if found else ""
    if letter and ord(letter) - ord("A") < len(choices):
        return choices[ord(letter) - ord("A")]
    return min(choices, key=lambda choice: Levenshtein.distance(said, choice))


def normalised(said: str, answer_type: str, precision: float | None) -> str | None:
    """A text as MathVista writes answers of a type; None where it is none of that type."""
    if answer_type not in ("integer", "float"):
        return said
    try:
        value = float(said)
        return str(int(value)) if answer_type == "integer" else str(round(value, int(precision or 0)))
    except (ValueError, OverflowError):
        return None


def _choices(given: object) -> Sequence[str]:
    if isinstance(given, list | tuple) and given and all(isinstance(each, str) for each in given):
        return given
    raise ScoringFailed(f"references.choices is {given!r:.60}; a list of texts is due", "reference")
