"""Parse time spans from an answer.

Accepted are [3.2, 7], 3.2s to 7s, from 00:03 to 00:07.5, between 3 and 7 seconds, 3-7 and 9-12; in JSON
[[3.2, 7], [9, 12]], {"start": 3.2, "end": 7} and [{"start_time": "00:03", "end_time": "00:07"}].
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.json_text import decode_json, split_fence
from mmrl.rewards.parsing.numbers import DASHES, require_ascii_digits

Span: TypeAlias = tuple[float, float]
"""Start and end in seconds; the end is later."""

MAX_SPANS = 1000
_NEAR = 60  # number of characters on either side of a span that are checked for words that change it
_KEYS = (("start", "end"), ("start_time", "end_time"), ("begin", "end"), ("from", "to"))

_CLOCK = r"(?:[0-9]{1,4}:){1,2}[0-5]?[0-9](?:\.[0-9]{1,20})?"  # 02:03, 1:02:03.4
_SECONDS = r"[0-9]{1,9}(?:\.[0-9]{1,20})?"
_UNIT = r"(?: ?(?:s|secs?|seconds?)\b)?"
_TIME = rf"(?:{_CLOCK}|{_SECONDS}){_UNIT}"
_BETWEEN = rf"(?: ?[{DASHES}~] ?| (?:to|and|until) )"
_WITH_UNIT = re.compile(rf"({_CLOCK}|{_SECONDS}){_UNIT}", re.IGNORECASE)
_SPAN = re.compile(rf"(?P<start>{_TIME}){_BETWEEN}(?P<end>{_TIME})", re.IGNORECASE)
_LISTED = re.compile(rf"[\[(] ?(?P<start>{_TIME}) ?, ?(?P<end>{_TIME}) ?[\])]", re.IGNORECASE)
_BARE = re.compile(rf"(?P<start>{_TIME}) ?, ?(?P<end>{_TIME})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]")
_EMPTY = re.compile(r"\[ ?\]")
_MARKS = r"[\[\]()*\"'` ]{0,6}"
_NEGATED = re.compile(  # text directly before a span that negates it or changes its unit
    rf"(?:[{DASHES}] |\b(?:not|never|\w{{1,9}}n['\u2019]t)"
    rf"(?: (?:happen|occur|from|between|at|in|during|within)){{0,2}} ){_MARKS}$"
    rf"|\b(?:frames?|mins?|minutes?|hours?) (?:from |between )?{_MARKS}$",
    re.IGNORECASE,
)
_OTHER_UNIT = re.compile(
    rf"{_MARKS}[{DASHES}]?(?:in )?(?:%|(?:m|mins?|minutes?|h|hrs?|hours?|ms|milliseconds?|frames?|percent)\b)",
    re.IGNORECASE,
)


def parse_spans(text: str) -> list[Span]:
    """Return all time spans that an answer names, in seconds and in the order of the answer.

    Times are seconds, MM:SS or H:MM:SS. Prose around them is skipped, but every digit in the answer must belong to a
    span and every bracket must be closed: truncated answers and other numbers are invalid. So are minutes in words
    ("1 min 3 s", "3 to 7 minutes") and other units, signs, "not 3 to 7", and digits other than ASCII 0 to 9 (see
    `require_ascii_digits`). The JSON [] states that there is no span.

    Raises:
        InvalidAnswer: there is no span, one does not end after it starts, or there are more than `MAX_SPANS`.
    """
    answer = require_ascii_digits(text).strip()
    if "```" in answer:
        spans = spans_from_json(decode_json(answer))
        _, before, after = split_fence(answer)
        _check_span_context(" ".join([*before.split(), ""]), " ".join(["", *after.split()]))
        return spans
    if (answer[:1], answer[-1:]) in (("[", "]"), ("{", "}")):
        try:
            value = decode_json(answer)
        except InvalidAnswer:
            return _from_prose(answer)  # [3 to 7], [00:03, 00:07] and [3, 7], [9, 12] look like JSON
        return spans_from_json(value)
    return _from_prose(answer)


def merge_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the union of the spans, as spans that neither overlap nor touch, in order of time."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def spans_from_json(value: Any) -> list[Span]:
    """Return the spans in a JSON value: a pair, a mapping with two ends, or a list of these.

    Raises:
        InvalidAnswer: the value is something else, or a span does not end after it starts.
    """
    if _is_span(value):
        return [_span(value)]
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(_is_span(each) for each in value):
        raise InvalidAnswer(f"{value!r:.60} is neither a span [start, end] nor a list of spans")
    if len(value) > MAX_SPANS:
        raise InvalidAnswer(f"the answer has {len(value)} spans; at most {MAX_SPANS} are read")
    return [_span(each) for each in value]


def _from_prose(prose: str) -> list[Span]:
    text = " ".join(prose.split())
    bare = _BARE.fullmatch(text)
    found = [bare] if bare else [*_LISTED.finditer(text), *_SPAN.finditer(text)]
    found.sort(key=lambda match: match.start())
    if not found:
        raise InvalidAnswer(f"no span of time in {text[:60]!r}")
    if len(found) > MAX_SPANS:
        raise InvalidAnswer(f"the answer has {len(found)} spans; at most {MAX_SPANS} are read")
    outside, at = [], 0
    for match in found:
        _check_span_context(text[: match.start()][-_NEAR:], text[match.end() :][:_NEAR])
        outside.append(text[at : match.start()])
        at = match.end()
    rest = " ".join([*outside, text[at:]])
    if stray := _NUMBER.search(rest):
        raise InvalidAnswer(f"{rest[stray.start() :][:20]!r} belongs to no span of time in {text[:60]!r}")
    if _EMPTY.search(text):
        raise InvalidAnswer(f"an empty list stands beside a span of time in {text[:60]!r}")
    if any(text.count(opening) != text.count(closing) for opening, closing in ("[]", "()", "{}")):
        raise InvalidAnswer(f"brackets are left open in {text[:60]!r}")
    return [_span((match["start"], match["end"])) for match in found]


def _check_span_context(before: str, after: str) -> None:
    """Raise InvalidAnswer if a span is part of something longer, or not in seconds: -3 to 5, 3 to 7 minutes."""
    left, right = before[-1:], after[:1]
    letters = any(c == "_" or c.isdigit() or c.lower() != c.upper() for c in (left, right))
    signed = left != "" and left in f".:,~{DASHES}"
    if letters or signed or _NEGATED.search(before[-_NEAR:]) or _OTHER_UNIT.match(after[:_NEAR]):
        raise InvalidAnswer(f"a span of time stands between {before[-20:]!r} and {after[:20]!r}, which changes it")


def _is_span(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == 2
        and all(isinstance(end, int | float | str) for end in value)
    )


def _span(value: Any) -> Span:
    if isinstance(value, Mapping):
        ends = [(value[a], value[b]) for a, b in _KEYS if a in value and b in value]
        if len(ends) != 1:
            raise InvalidAnswer(f"{value!r:.60} has {len(ends)} pairs of start and end, not one")
        value = ends[0]
    start, end = _seconds(value[0]), _seconds(value[1])
    if not 0 <= start < end:
        raise InvalidAnswer(f"a span ends after it starts, and not from {start:g} to {end:g} seconds")
    return start, end


def _seconds(time: Any) -> float:
    """Return seconds from a number or a text, summed as decimals, so that 01:23.4 is exactly the float 83.4."""
    if isinstance(time, str):
        read = _WITH_UNIT.fullmatch(time.strip())
        if not read:
            raise InvalidAnswer(f"{time[:40]!r} is not a time in seconds, MM:SS or H:MM:SS")
        total = Decimal(0)
        for part in read[1].split(":"):
            total = 60 * total + Decimal(part)
        return float(total)
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise InvalidAnswer(f"{time!r:.40} is not a time in seconds, MM:SS or H:MM:SS")
    try:
        seconds = float(time)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise InvalidAnswer(f"{time!r:.40} is not a time in seconds")
    return seconds
