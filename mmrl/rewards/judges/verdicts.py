"""From what a judge said to a number, a choice or an order. What cannot be read is the judge's failure, never a 0."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from mmrl.rewards.core.reward_errors import ScoringFailed

LEAST_MASS = 0.01
"""Below this probability of either word, the judge was about to say something else, and their ratio is noise."""

_SPACES = " \t\r\n▁Ġ"  # as tokenizers write them
_MARKS = "*_`\"'\u201c\u201d\u2018\u2019.,:;!()[]"
_NUMBER = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s{0,2}(?:/|out of)\s{0,2}([0-9]{1,9}(?:\.[0-9]{1,9})?))?")
_LABEL = re.compile(r"(?:final )?(?:answer|ranking|order|rating|score|verdict)\s{0,2}[:=]\s{0,2}", re.IGNORECASE)


def share(first_token: Mapping[str, float], yes: str, no: str) -> float:
    """P(yes) / (P(yes) + P(no)), each summed over its spellings ("Yes", " yes", "YES."), in [0, 1].

    Raises:
        ScoringFailed: "unparseable": the judge was about to say neither.
    """
    mass = {yes: 0.0, no: 0.0}
    for token, logprob in first_token.items():
        word = _bare(token)
        if word in mass:
            mass[word] += math.exp(logprob)
    total = mass[yes] + mass[no]
    if total < LEAST_MASS:
        likely = max(first_token, key=first_token.__getitem__, default="")
        raise ScoringFailed(f"the judge would say {likely!r:.40}, neither {yes!r} nor {no!r}", "unparseable")
    return mass[yes] / total


def choice(text: str, options: Sequence[str]) -> str:
    """The option that is all that the judge said, or that its last line gives after "Answer:".

    "Yes.", "**yes**" and "... Answer: yes" are read; "Yes, but" and "yes or no" are not.
    """
    said = _bare(_final(text))
    if said not in options:
        raise _unparseable(text, f"one of {', '.join(options)}")
    return said


def number(text: str, low: float, high: float) -> float:
    """A number on the scale, such as "7", "7.5/10" or "Score: 7 out of 10"."""
    found = _NUMBER.fullmatch(_final(text).strip(_SPACES + "*_`\"'.,:;!()[]"))
    if not found or (found[2] and float(found[2]) != high) or not low <= float(found[1]) <= high:
        raise _unparseable(text, f"a number from {low:g} to {high:g}")
    return float(found[1])


def order(text: str, size: int) -> list[int]:
    """The judge's order, best first, counted from 0: "3 > 1 > 2" gives [2, 0, 1].

    Raises:
        ScoringFailed: "unparseable": not each number from 1 to `size`, once.
    """
    parts = [part for part in re.split(r"[\s>,;]+", _final(text).strip(_SPACES + _MARKS)) if part]
    places = [int(part) - 1 for part in parts if part.isascii() and part.isdigit() and len(part) < 10]
    if len(places) != len(parts) or sorted(places) != list(range(size)):
        raise _unparseable(text, f"each number from 1 to {size}, once")
    return places


def _final(text: str) -> str:
    """What follows the judge's thinking: all of it, or what its last line says after a label."""
    _, closed, said = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise ScoringFailed("the judge's thinking never ends", "unparseable")
    said = said.strip()
    last = said.rpartition("\n")[2].strip(_SPACES + _MARKS)
    if labelled := _LABEL.match(last):
        return last[labelled.end() :]
    return said


def _bare(word: str) -> str:
    return word.strip(_SPACES + _MARKS).casefold()


def _unparseable(text: str, due: str) -> ScoringFailed:
    return ScoringFailed(f"the judge said {text.strip()[:120]!r}, not {due}", "unparseable")
