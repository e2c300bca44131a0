"""Rewards for reading a text that is legible in parts: to flag what cannot be read, and to guess nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form

MAX_CHARACTERS = 10_000
"""The number of characters above which a text is not compared: the time of an alignment is quadratic."""

Aligned = tuple[str, bool, str]
"""A true character, "" where there is none; whether it can be read; and what was read there, "" for nothing."""


class _PartlyLegible(Reward):
    """The base class of rewards that compare a reading with a true text, character by character.

    `references["answer"]` is the text without its flaws, and `references["unreadable"]` the places (from 0) of the
    characters that cannot be read, an empty list if all can.
    """

    needs = ("text", "references.answer", "references.unreadable")

    def __init__(self, flag: str = "?") -> None:
        if not isinstance(flag, str) or len(flag) != 1 or flag.isspace():
            raise RewardError(f"{self.name}: flag is {flag!r}; expected one character")
        self.flag = flag

    def aligned(self, item: RewardInput) -> list[Aligned]:
        """Return the characters of truth and answer, in the alignment with the fewest edits.

        Raises:
            InvalidAnswer: the answer is marked more than once, or too long.
            ScoringFailed: the reference is no text, or a place is none of its characters.
        """
        truth, places = _reference(item.references["answer"], item.references["unreadable"])
        read = unicodedata.normalize("NFC", answer_text(item.text or "", resolve_form(item)))
        if len(read) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(read)} characters; at most {MAX_CHARACTERS} are compared")
        return list(_align(truth, places, read, self.flag))


class LegibleText(_PartlyLegible):
    """The mean over characters of 1 for a right one, -`guess` for a wrong one, and `needless` for a needless flag.

    Right is a character that can be read and was, or a flag for one that cannot. A character that stands for another,
    for one that cannot be read, or for none, is a guess, and one that is left out has 0. In [-1, 1].

    KIE-HVQA (arXiv:2506.20168) rewards the edit distance of what is clear and the flags of what is not; the value of a
    guess, below that of a needless flag, is the suite's.
    """

    name, range = "legible_text", (-1.0, 1.0)
    source = "KIE-HVQA, arXiv:2506.20168"

    def __init__(self, guess: float = 1.0, needless: float = 0.0, flag: str = "?") -> None:
        """
        Args:
            guess: what a wrong character costs, from 0 to 1.
            needless: the reward of a flag for a character that can be read, from -1 to 1.
            flag: the character that stands for one that cannot be read.
        """
        super().__init__(flag)
        if not (0 <= guess <= 1 and -1 <= needless <= 1):
            raise RewardError(f"legible_text: guess {guess} and needless {needless}; from 0 to 1, and from -1 to 1")
        self.guess, self.needless = guess, needless

    def score_one(self, item: RewardInput) -> float:
        rows = self.aligned(item)
        return sum(self._value(*row) for row in rows) / len(rows)

    def _value(self, true: str, legible: bool, read: str) -> float:
        if not read:
            return 0.0
        if read == self.flag and not (true == self.flag and legible):
            return 1.0 if true and not legible else self.needless if true else 0.0
        return 1.0 if legible and read == true else -self.guess


class HallucinatedText(_PartlyLegible):
    """The share of the characters that cannot be read for which the answer has one all the same; lower is better.

    0 for a text that is legible as a whole.
    """

    name, range, direction = "hallucinated_text", (0.0, 1.0), "lower"
    source = "KIE-HVQA, arXiv:2506.20168"

    def score_one(self, item: RewardInput) -> float:
        hidden = [read for true, legible, read in self.aligned(item) if true and not legible]
        return sum(read not in ("", self.flag) for read in hidden) / max(len(hidden), 1)


def _align(truth: str, places: frozenset[int], read: str, flag: str) -> Iterator[Aligned]:
    from rapidfuzz.distance import Levenshtein

    seen = "".join(flag if place in places else letter for place, letter in enumerate(truth))
    for step in Levenshtein.opcodes(seen, read):
        kind, start, end, begin, stop = step.tag, step.src_start, step.src_end, step.dest_start, step.dest_end
        if kind == "insert":
            yield from (("", True, letter) for letter in read[begin:stop])
        for offset in range(end - start):
            place = start + offset
            yield truth[place], place not in places, "" if kind == "delete" else read[begin + offset]


def _reference(truth: Any, unreadable: Any) -> tuple[str, frozenset[int]]:
    if not isinstance(truth, str) or not truth or len(truth) > MAX_CHARACTERS:
        raise ScoringFailed(f"references['answer'] is {truth!r:.60}; expected a text", "reference")
    text = unicodedata.normalize("NFC", truth)
    places: list[Any] = list(unreadable) if isinstance(unreadable, list | tuple) else [None]
    if not all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < len(text) for each in places):
        message = f"references['unreadable'] is {unreadable!r:.60}; expected places in a text of {len(text)} characters"
        raise ScoringFailed(message, "reference")
    return text, frozenset(places)
