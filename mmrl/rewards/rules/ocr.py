"""Text read off a picture against the text that stands in it: edit distances."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text, resolve_form

MAX_CHARACTERS = 100_000
"""Characters past which a text is not compared: the time grows with the square."""

UnicodeForm: TypeAlias = Literal["NFC", "NFKC"]
"""NFC takes for one what Unicode calls the same text; NFKC also what only looks different, as a full-width letter."""


class _Read(Reward):
    """What the three have in common: which differences between texts count."""

    needs, range = ("text", "references.answer"), (0.0, 1.0)

    def __init__(
        self,
        fold_case: bool = False,
        fold_space: bool = False,
        unicode: UnicodeForm = "NFC",
        form: AnswerFormat = "auto",
    ) -> None:
        if unicode not in get_args(UnicodeForm):
            raise RewardError(f"{self.name}: unicode is {unicode!r}; due is one of {', '.join(get_args(UnicodeForm))}")
        self.fold_case, self.fold_space, self.unicode, self.form = fold_case, fold_space, unicode, form

    def texts(self, item: RewardInput) -> tuple[str, str]:
        """What was read and what is there, with what does not count taken out."""
        truth: Any = item.references["answer"]
        if isinstance(truth, bool) or not isinstance(truth, str | int | float) or len(str(truth)) > MAX_CHARACTERS:
            due = f"due is a text of at most {MAX_CHARACTERS} characters"
            raise ScoringFailed(f"references.answer is {truth!r:.60}; {due}", "reference")
        answer = answer_text(item.text or "", resolve_form(item, self.form))
        if len(answer) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(answer)} characters; at most {MAX_CHARACTERS} are compared")
        return self._folded(answer), self._folded(str(truth))

    def _folded(self, text: str) -> str:
        text = unicodedata.normalize(self.unicode, text.strip())
        if self.fold_case:
            text = unicodedata.normalize(self.unicode, text.casefold())
        return " ".join(text.split()) if self.fold_space else text


class OCRNED(_Read):
    """Likeness of a text read and the true one, in [0, 1]: 1 - edit distance / length of the longer.

    Exact but for white space at the ends and Unicode's canonical equivalents: case and white space count unless
    `fold_case` and `fold_space`, and look-alikes (Cyrillic А for Latin A) always, where `unicode="NFKC"` does not fold
    them. Where both texts are empty it is 1.
    """  # noqa: RUF002

    name = "ocr_ned"
    source = "1 − Levenshtein / max(length)"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return 1.0 if read == truth else clamp_below_one(1 - edit_distance(read, truth) / max(len(read), len(truth)))


class OCRCER(_Read):
    """Character error rate of a text read, in [0, 1], lower is better: edit distance / length of the truth, at most 1.

    Compared as in `ocr_ned`. Where there is no text to read, any answer but an empty one scores 1.
    """

    name = "ocr_cer"
    direction = "lower"
    source = "CER = (substitutions + deletions + insertions) / characters"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read, truth)


class OCRWER(_Read):
    """Word error rate of a text read, in [0, 1], lower is better: edits in words / words of the truth, at most 1.

    As `ocr_cer`, of words as white space parts them; only that they are parted counts, not by what.
    """

    name = "ocr_wer"
    direction = "lower"
    source = "WER = (substitutions + deletions + insertions) / words"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read.split(), truth.split())


def error_rate(read: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Edits needed per piece of the truth, at most 1; where the truth is empty, 1 for anything that is not."""
    return min(1.0, edit_distance(read, truth) / max(len(truth), 1))


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Levenshtein's distance of two texts, or of two lists of words."""
    from rapidfuzz.distance import Levenshtein

    return int(Levenshtein.distance(first, second))
