"""What counts as a digit in an answer: 0 to 9 of ASCII, and nothing that looks like them."""

from __future__ import annotations

import unicodedata

from mmrl.rewards.base import InvalidAnswer

DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"
"""Hyphens, dashes and minus signs: right before a number, all of them look like its sign."""
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction of writing around: 12 behind them is read 21."""
LONGEST = 10_000
"""Characters past which an answer that should be a few numbers is not read."""


def plain_digits(text: str) -> str:
    """The text itself, once it is known to be short, with no digit but 0 to 9, and in the order in which it is seen.

    Python reads full-width and Arabic-Indic digits as numbers, and a pattern that skips "²" reads 3² as 3. All of them
    are refused, so that a number is what it looks like.
    """
    if len(text) > LONGEST:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {LONGEST} are read for numbers")
    for c in text:
        if not c.isascii() and (unicodedata.category(c)[0] == "N" or c in _TURNING):
            raise InvalidAnswer(f"U+{ord(c):04X} ({unicodedata.name(c, 'without a name')}) is no digit from 0 to 9")
    return text
