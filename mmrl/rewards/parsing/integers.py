"""Parse one whole number from an answer, in digits or in English words.

Accepted are "3", "There are 3 circles.", "three (3)", "1,204", "twenty-one", "two hundred and five" and
"I see 2 and 1. Answer: 3".
"""

from __future__ import annotations

import re

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.numbers import DASHES, check_number_context, require_ascii_digits

MAX_COUNT = 10**12  # largest count; larger numbers would be rounded when scored

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_UNITS = {word: value for value, word in enumerate([*_SMALL.split(), "seventeen", "eighteen", "nineteen"])}
_ROUND = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {word: 10 * tens for tens, word in enumerate(_ROUND.split(), start=2)}
_NUMBER_WORDS = {*_UNITS, *_TENS, "hundred", "thousand"}

_FINAL = re.compile(r"\banswer(?: is\b|\s?[:=])", re.IGNORECASE)
_TOKEN = re.compile(r"[0-9][0-9,.]*|[^\W\d_]+|[^\s]")  # a run of digits, a word, or any other character
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}")
_DECIMAL = re.compile(r"([0-9]{1,15})\.([0-9]{1,15})")
_HYPHENS = DASHES[:3]  # as they join twenty-one


def parse_count(text: str) -> int:
    """Return the one whole number that an answer names.

    The same number may be named twice ("three (3)"). Several different numbers are invalid, unless the text ends with a
    single "answer: 3" or "the answer is 3". Ordinals (2nd), units (3px) and names (x3) are not counts; "none" and "no"
    are not numbers. Digits are ASCII 0 to 9 only: see `require_ascii_digits`.

    Raises:
        InvalidAnswer: there is no number or several, or the number is negated ("not 3", "at least 3"), modified
            (3 dozen, √3, 3 + 3), negative, not whole, or above 10^12.
    """
    read = require_ascii_digits(text)
    if finals := list(_FINAL.finditer(read)):
        if len(finals) > 1:
            raise InvalidAnswer(f"the answer is stated {len(finals)} times, not once")
        read = read[finals[0].end() :]
    found = sorted(set(_counts_in(read)))
    if len(found) != 1:
        named = f"{len(found)} different numbers ({', '.join(map(str, found[:5]))})" if found else "no number"
        raise InvalidAnswer(f"{named} in {text[:60]!r}; expected one count")
    return found[0]


def _counts_in(text: str) -> list[int]:
    tokens = [(match.group(), match.start(), match.end()) for match in _TOKEN.finditer(text)]
    found: list[int] = []
    at = 0
    while at < len(tokens):
        token, start, end = tokens[at]
        digits = token[0].isdigit()
        if not (digits or token.lower() in _NUMBER_WORDS) or _is_glued(text, start, end):
            at += 1
            continue
        if digits:
            check_number_context(text, start, start + len(token.rstrip(",.")))
            found += _numbers_of(token)
            at += 1
        else:
            value, at = _spelled(tokens, at)
            if _is_glued(text, *tokens[at - 1][1:]):
                raise InvalidAnswer(f"{text[start : tokens[at - 1][2] + 1]!r} is not a number in words")
            check_number_context(text, start, tokens[at - 1][2])
            found.append(value)
    return found


def _is_glued(text: str, start: int, end: int) -> bool:
    """Return whether the number is part of a longer word: 2nd, 3px, x3, 1e9, three0, and 3 with a Cyrillic o.

    Letters without case do not count: Chinese and Japanese write 3个 without a space.
    """
    beside = (text[start - 1 : start], text[end : end + 1])
    return any(c == "_" or c.isdigit() or c.lower() != c.upper() for c in beside)


def _numbers_of(token: str) -> list[int]:
    """Return the counts in a run of digits, commas and points, such as 1,204 or the list 1,2,3."""
    token = token.rstrip(",.")
    if _GROUPED.fullmatch(token):
        token = token.replace(",", "")
    numbers = []
    for part in token.split(","):
        if decimal := _DECIMAL.fullmatch(part):
            if decimal.group(2).strip("0"):
                raise InvalidAnswer(f"a count is whole, and {part} is not")
            part = decimal.group(1)
        if not part.isdigit() or len(part) > 15 or int(part) > MAX_COUNT:
            raise InvalidAnswer(f"{part[:40]!r} is not a count up to {MAX_COUNT:,}")
        numbers.append(int(part))
    return numbers


def _spelled(tokens: list[tuple[str, int, int]], at: int) -> tuple[int, int]:
    """Return the number in words that begins at a token, and the index of the token after it.

    Each step takes the longest number that English allows, so "two three" is two numbers and "twenty one" is one.
    """
    value, after = _below_thousand(tokens, at)
    if _word(tokens, after) == "thousand" and (value or after == at):
        value, after = 1000 * max(value, 1), after + 1
        rest = after + 1 if _word(tokens, after) == "and" else after
        if _word(tokens, rest) in _UNITS or _word(tokens, rest) in _TENS:
            more, after = _below_thousand(tokens, rest)
            value += more
    return value, after


def _below_thousand(tokens: list[tuple[str, int, int]], at: int) -> tuple[int, int]:
    value, after = _below_hundred(tokens, at)
    if _word(tokens, after) == "hundred" and (1 <= value < 10 or after == at):
        value, after = 100 * max(value, 1), after + 1
        rest = after + 1 if _word(tokens, after) == "and" else after
        if _word(tokens, rest) in _UNITS or _word(tokens, rest) in _TENS:
            more, after = _below_hundred(tokens, rest)
            value += more
    return value, after


def _below_hundred(tokens: list[tuple[str, int, int]], at: int) -> tuple[int, int]:
    word = _word(tokens, at)
    if word in _UNITS:
        return _UNITS[word], at + 1
    if word not in _TENS:
        return 0, at  # "hundred" or "thousand" by itself
    joined = at + 2 if at + 1 < len(tokens) and tokens[at + 1][0] in _HYPHENS else at + 1
    unit = _UNITS.get(_word(tokens, joined), 0)
    return (_TENS[word] + unit, joined + 1) if 1 <= unit <= 9 else (_TENS[word], at + 1)


def _word(tokens: list[tuple[str, int, int]], at: int) -> str:
    return tokens[at][0].lower() if 0 <= at < len(tokens) else ""
