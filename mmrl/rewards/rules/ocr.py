"""Rewards for reading text in a picture: edit distances to the true text."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text, resolve_form

MAX_CHARACTERS = 100_000
"""The number of characters above which a text is not compared: time is quadratic."""

UnicodeForm: TypeAlias = Literal["NFC", "NFKC"]
"""NFC unifies canonical equivalents; NFKC also compatible characters, such as full-width letters."""


class _OCRReward(Reward):
    """The base class of OCR rewards: the normalisation of texts before they are compared."""

    needs, range = ("text", "references.answer"), (0.0, 1.0)

    def __init__(
        self,
        fold_case: bool = False,
        fold_space: bool = False,
        unicode: UnicodeForm = "NFC",
        form: AnswerFormat = "auto",
    ) -> None:
        if unicode not in get_args(UnicodeForm):
            raise RewardError(
                f"{self.name}: unicode is {unicode!r}; expected one of {', '.join(get_args(UnicodeForm))}"
            )
        self.fold_case, self.fold_space, self.unicode, self.form = fold_case, fold_space, unicode, form

    def texts(self, item: RewardInput) -> tuple[str, str]:
        """Return the answered and the true text, normalised."""
        truth: Any = item.references["answer"]
        if isinstance(truth, bool) or not isinstance(truth, str | int | float) or len(str(truth)) > MAX_CHARACTERS:
            expected = f"expected a text of at most {MAX_CHARACTERS} characters"
            raise ScoringFailed(f"references.answer is {truth!r:.60}; {expected}", "reference")
        answer = answer_text(item.text or "", resolve_form(item, self.form))
        if len(answer) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(answer)} characters; at most {MAX_CHARACTERS} are compared")
        return self._folded(answer), self._folded(str(truth))

    def _folded(self, text: str) -> str:
        text = unicodedata.normalize(self.unicode, text.strip())
        if self.fold_case:
            text = unicodedata.normalize(self.unicode, text.casefold())
        return " ".join(text.split()) if self.fold_space else text


class OCRNED(_OCRReward):
    """Similarity of the answered and the true text, in [0, 1]: 1 - edit distance / length of the longer.

    White space at the ends and Unicode's canonical equivalents are ignored. Case and white space count unless
    `fold_case` and `fold_space` are set, and look-alikes (Cyrillic А for Latin A) always count unless
    `unicode="NFKC"` folds them. If both texts are empty it is 1.
    """  # noqa: RUF002

    name = "ocr_ned"
    source = "1 − Levenshtein / max(length)"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return 1.0 if read == truth else clamp_below_one(1 - edit_distance(read, truth) / max(len(read), len(truth)))


class OCRCER(_OCRReward):
    """Character error rate, in [0, 1], lower is better: edit distance / length of the truth, at most 1.

    Texts are compared as in `ocr_ned`. If the true text is empty, any answer but an empty one scores 1.
    """

    name = "ocr_cer"
    direction = "lower"
    source = "CER = (substitutions + deletions + insertions) / characters"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read, truth)


class OCRWER(_OCRReward):
    """Word error rate, in [0, 1], lower is better: edits in words / words of the truth, at most 1.

    As `ocr_cer`, of words separated by white space; the kind and amount of white space do not count.
    """

    name = "ocr_wer"
    direction = "lower"
    source = "WER = (substitutions + deletions + insertions) / words"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read.split(), truth.split())


def error_rate(read: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Return the edits per element of the truth, at most 1; if the truth is empty, 1 for any non-empty sequence."""
    return min(1.0, edit_distance(read, truth) / max(len(truth), 1))


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance of two texts, or of two lists of words."""
    from rapidfuzz.distance import Levenshtein

    return int(Levenshtein.distance(first, second))
