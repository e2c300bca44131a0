"""Parse the JSON in an answer strictly: nothing is repaired.

InvalidAnswer states the reason: numbers beside the JSON, NaN and Infinity, a key twice in an object, truncated JSON,
unmatched closing brackets, nesting too deep to parse, several fenced blocks or an unclosed one, and more than
`MAX_VALUES` lists and objects side by side.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer

MAX_VALUES = 10_000  # largest number of lists and objects side by side in one text
_FENCE = "```"
_BRACKET = re.compile(r"[\[\]{}]")
_KEY_WITH_DIGIT = re.compile(r"\b(?:bbox|point)_2d\b")


def decode_json(text: str) -> Any:
    """Return the one list or object in `text`, which may be fenced and may have prose around it.

    Raises:
        InvalidAnswer: there is none or several, or it is not JSON.
    """
    values = json_values(text)
    if len(values) != 1:
        raise InvalidAnswer(f"there are {len(values)} JSON lists or objects in {text!r:.60}, not one")
    return values[0]


def json_values(text: str) -> list[Any]:
    """Return all outermost lists and objects in `text`, in order.

    If there is a fenced block, only that is parsed. Words around the JSON are skipped, but must not have digits: a
    number beside the JSON would be a second answer. Time is linear in the length of the text.
    """
    text, *outside = split_fence(text)
    found: list[Any] = []
    at = end = 0
    while bracket := _BRACKET.search(text, at):
        if bracket.group() in "]}":
            raise InvalidAnswer(f"the {bracket.group()} at character {bracket.start()} has no opening bracket")
        try:
            value, at = STRICT_JSON.raw_decode(text, bracket.start())
            outside.append(text[end : bracket.start()])
            end = at
        except InvalidAnswer:
            raise
        except RecursionError:
            raise InvalidAnswer("the JSON is nested too deep to be parsed") from None
        except ValueError as err:  # JSONDecodeError, or a number of more digits than Python reads
            raise InvalidAnswer(f"not JSON: {err}") from None
        found.append(value)
        if len(found) > MAX_VALUES:
            raise InvalidAnswer(f"there are more than {MAX_VALUES} JSON lists or objects")
    check_no_digits(" ".join([*outside, text[end:]]))
    return found


def check_no_digits(words: str) -> None:
    """Raise unless the words around an answer are free of digits; the names bbox_2d and point_2d are allowed.

    Raises:
        InvalidAnswer: there is a digit, of any script.
    """
    plain = _KEY_WITH_DIGIT.sub("", words)
    for at, character in enumerate(plain):
        if character.isdigit():
            raise InvalidAnswer(f"{plain[at : at + 20]!r} stands beside the answer: a number that is not part of it")


def strip_fence(text: str) -> str:
    """Return the text between ``` and ```; the whole text if there is no fence."""
    return split_fence(text)[0]


def split_fence(text: str) -> tuple[str, str, str]:
    """Return the text between ``` and ```, before it and after it; (text, "", "") if there is no fence."""
    count = text.count(_FENCE)
    if count == 0:
        return text, "", ""
    if count != 2:
        reason = "a fenced block is never closed" if count % 2 else f"there are {count // 2} fenced blocks, not one"
        raise InvalidAnswer(reason)
    before, inside, behind = text.split(_FENCE)
    return inside, before, behind


def number(value: Any, what: str) -> float:
    """Return a JSON number as a float. Neither true nor "12" is a number; `what` names the value in the error.

    Raises:
        InvalidAnswer: the value has another type, or is too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidAnswer(f"{what} is {value!r:.40}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidAnswer(f"{what} is too large for a number") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise InvalidAnswer if a key occurs twice, since either value could be meant."""
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise InvalidAnswer(f"the key {twice!r:.40} occurs twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise InvalidAnswer(f"{name} is not a number")


STRICT_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
"""A decoder that raises `InvalidAnswer` for NaN, Infinity and a key that occurs twice in an object."""
