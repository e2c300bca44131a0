"""JSON out of an answer, strictly: what a lenient reader would repair is a malformed answer.

Refused, each with its reason: numbers beside it, NaN and Infinity, a key that stands twice in an object, text that
breaks off, brackets that close nothing, nesting too deep to read, several fenced blocks or one that is never closed,
and more lists and objects side by side than `MAX_VALUES`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer

MAX_VALUES = 10_000
"""Lists and objects in one text past which it is no answer."""
_FENCE = "```"
_BRACKET = re.compile(r"[\[\]{}]")
_KEY_WITH_DIGIT = re.compile(r"\b(?:bbox|point)_2d\b")


def decode_json(text: str) -> Any:
    """The one list or object in `text`, which may be fenced and may have prose around it.

    Raises:
        InvalidAnswer: there is none, or several, or it is no JSON.
    """
    values = json_values(text)
    if len(values) != 1:
        raise InvalidAnswer(f"there are {len(values)} JSON lists or objects in {text!r:.60}, not one")
    return values[0]


def json_values(text: str) -> list[Any]:
    """All lists and objects in `text` that stand in no other, in order; other words are passed over.

    Only the fenced block is read if there is one. The words have no digits: a number beside the JSON would be a second
    answer. Takes time linear in the length of the text.
    """
    text, *outside = split_fence(text)
    found: list[Any] = []
    at = end = 0
    while bracket := _BRACKET.search(text, at):
        if bracket.group() in "]}":
            raise InvalidAnswer(f"the {bracket.group()} at character {bracket.start()} closes nothing")
        try:
            value, at = _DECODER.raw_decode(text, bracket.start())
            outside.append(text[end : bracket.start()])
            end = at
        except InvalidAnswer:
            raise
        except RecursionError:
            raise InvalidAnswer("the JSON is nested too deep to be read") from None
        except ValueError as err:  # JSONDecodeError, or a number of more digits than Python reads
            raise InvalidAnswer(f"no JSON: {err}") from None
        found.append(value)
        if len(found) > MAX_VALUES:
            raise InvalidAnswer(f"there are more than {MAX_VALUES} JSON lists or objects")
    check_no_digits(" ".join([*outside, text[end:]]))
    return found


def check_no_digits(words: str) -> None:
    """Refuse numbers in the words around an answer; the names bbox_2d and point_2d are none.

    Raises:
        InvalidAnswer: there is a digit, of whatever script.
    """
    plain = _KEY_WITH_DIGIT.sub("", words)
    for at, character in enumerate(plain):
        if character.isdigit():
            raise InvalidAnswer(f"{plain[at : at + 20]!r} stands beside the answer: a number that is no part of it")


def strip_fence(text: str) -> str:
    """What stands between ``` and ```; the whole text where there is no fence."""
    return split_fence(text)[0]


def split_fence(text: str) -> tuple[str, str, str]:
    """What stands between ``` and ```, before and behind; the whole text and nothing where there is no fence."""
    count = text.count(_FENCE)
    if count == 0:
        return text, "", ""
    if count != 2:
        how = "a fenced block is never closed" if count % 2 else f"there are {count // 2} fenced blocks, not one"
        raise InvalidAnswer(how)
    before, inside, behind = text.split(_FENCE)
    return inside, before, behind


def number(value: Any, what: str) -> float:
    """A number that came out of JSON. Neither true nor "12" is one.

    Raises:
        InvalidAnswer: it is of another type, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidAnswer(f"{what} is {value!r:.40}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidAnswer(f"{what} is too large for a number") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values under one key, either could be meant."""
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidAnswer(f"the key {twice!r:.40} stands twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise InvalidAnswer(f"{name} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
