"""Find names of one or several words in a text, whole and without case."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from mmrl.rewards.core.reward_errors import InvalidAnswer

MAX_CHARACTERS = 100_000
"""The number of characters above which a text is invalid."""

Phrase = tuple[str, ...]
"""The words of a name."""

_WORD = re.compile(r"\w+")


def words_of(text: str) -> Phrase:
    """Return the words of a text, without case.

    >>> words_of("Turn LEFT, slowly")
    ('turn', 'left', 'slowly')

    Raises:
        InvalidAnswer: the text is longer than `MAX_CHARACTERS`.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; names are sought in up to {MAX_CHARACTERS}")
    return tuple(_WORD.findall(unicodedata.normalize("NFC", text).casefold()))


def count_phrases(words: Sequence[str], phrases: Iterable[Phrase]) -> dict[Phrase, int]:
    """Return the number of mentions of each phrase; a longer one takes its words away from those that it contains.

    >>> count_phrases(("turn", "left", "now"), [("left",), ("turn", "left")])
    {('turn', 'left'): 1, ('left',): 0}
    """
    found = {phrase: 0 for phrase in sorted(phrases, key=len, reverse=True)}
    at = 0
    while at < len(words):
        here = next((phrase for phrase in found if tuple(words[at : at + len(phrase)]) == phrase), None)
        if here is not None:
            found[here] += 1
        at += 1 if here is None else len(here)
    return found
