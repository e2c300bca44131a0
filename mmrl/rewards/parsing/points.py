"""Parse one point from an answer.

Accepted are [320, 240], (320, 240), 320, 240, <point>320 240</point>, x=320, y=240 and click words around any of them;
{"x": 320, "y": 240}, {"point_2d": [320, 240]}, also fenced or as the one element of a list; and Qwen-VL's
<|box_start|>(320,240)<|box_end|>.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.parsing.boxes import OUTSIDE, Size, Space, TrueBoxes, extent
from mmrl.rewards.parsing.json_text import decode_json, number, strip_fence
from mmrl.rewards.parsing.numbers import DASHES, require_ascii_digits

Point: TypeAlias = tuple[float, float]
"""x (to the right) and y (down)."""

POINT_KEYS = ("point_2d", "point", "coordinate", "coordinates", "position")

_NUMBER = r"-?[0-9]{1,12}(?:\.[0-9]{1,20})?"
_PAIR = re.compile(rf"(?:\bx ?[=:] ?)?(?P<x>{_NUMBER})(?: ?, ?| )(?:y ?[=:] ?)?(?P<y>{_NUMBER})", re.IGNORECASE)
_DIGIT = re.compile(r"[0-9]")
_BRACKET = re.compile(r"[\[{]")


def parse_point(text: str, space: Space, size: Size | None = None) -> Point:
    """Return the one point in an answer whose coordinates are in `space`; `size` is the picture's, if known.

    Words may surround the point, but not other numbers: two points, or a box, are invalid.

    Raises:
        InvalidAnswer: there is no point or several, or it fails `check_point`.
    """
    answer = strip_fence(require_ascii_digits(text)).strip()
    if "{" in answer or answer[:1] == "[":
        first, last = _BRACKET.search(answer), max(answer.rfind("]"), answer.rfind("}"))
        if first and _DIGIT.search(answer[: first.start()] + answer[last + 1 :]):
            raise InvalidAnswer(f"there are more numbers than the two of a point in {text[:60]!r}")
        return check_point(_point_in(decode_json(answer)), space, size)
    return check_point(parse_pair(answer), space, size)


def parse_pair(text: str) -> Point:
    """Return the two coordinates in a text that has no other number.

    Raises:
        InvalidAnswer: the text has fewer or more than two numbers, or an unmatched bracket.
    """
    read = " ".join(require_ascii_digits(text).replace("<|box_start|>", " ").replace("<|box_end|>", " ").split())
    pair = _PAIR.search(read)
    if not pair:
        raise InvalidAnswer(f"no point (x, y) in {text[:60]!r}")
    before, after = read[: pair.start()], read[pair.end() :]
    if _DIGIT.search(before) or _DIGIT.search(after):
        raise InvalidAnswer(f"there are more numbers than the two of a point in {text[:60]!r}")
    if any(c == "_" or c.lower() != c.upper() for c in (before[-1:], after[:1])) or before[-1:] in tuple(f".{DASHES}"):
        raise InvalidAnswer(f"{pair[0]!r} is part of something else in {text[:60]!r}")
    if any(read.count(opening) != read.count(closing) for opening, closing in ("[]", "()", "{}")):
        raise InvalidAnswer(f"brackets are left open in {text[:60]!r}")
    return float(pair["x"]), float(pair["y"])


def check_point(values: Sequence[float], space: Space, size: Size | None = None) -> Point:
    """Return two numbers in `space` as a point.

    As for boxes, the point may lie beyond the picture's edge by at most 1 % of the picture.

    Raises:
        InvalidAnswer: a coordinate is not finite or outside the picture.
    """
    x, y = values
    if not (math.isfinite(x) and math.isfinite(y)):
        raise InvalidAnswer(f"the point ({x:g}, {y:g}) has a coordinate that is not finite")
    width, height = extent(space, size)
    if not (-OUTSIDE <= x / width <= 1 + OUTSIDE and -OUTSIDE <= y / height <= 1 + OUTSIDE):
        raise InvalidAnswer(f"({x:g}, {y:g}) lies outside the picture, which is {width:g} by {height:g} in {space}")
    return x, y


def point_from_json(value: Any) -> Point:
    """Return the point in a JSON value: [x, y], or text that names one.

    Raises:
        InvalidAnswer: the value is something else.
    """
    if isinstance(value, str):
        return parse_pair(value)
    if not isinstance(value, Sequence) or len(value) != 2:
        raise InvalidAnswer(f"a point has two numbers, not {value!r:.60}")
    return number(value[0], "x"), number(value[1], "y")


def _point_in(value: Any) -> Point:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping):
        keys = [key for key in POINT_KEYS if key in value] + (["x"] if "x" in value else [])
        if len(keys) != 1:
            raise InvalidAnswer(f"an object names {len(keys)} points, not one: {value!r:.60}")
        return point_from_json([value["x"], value.get("y")] if keys == ["x"] else value[keys[0]])
    return point_from_json(value)


def check_comparable(truth: TrueBoxes) -> None:
    """Check that answered points can be compared with the true boxes of a sample.

    Raises:
        ScoringFailed: one of them is in pixels, the other in fractions of a picture whose size is not known.
    """
    answer, reference = truth.answer_space, truth.reference_space
    if truth.size is None and answer != reference and "pixel" in (answer, reference):
        raise ScoringFailed(
            f"points in {answer} cannot be compared with boxes in {reference} without references['size']", "reference"
        )


def is_inside(point: Point, truth: TrueBoxes) -> bool:
    """Return whether an answered point lies in any of the true boxes or on its edge.

    Coordinates are compared as exact fractions: 108.8 of 640 pixels is on an edge at 170 of 1000.
    """
    width, height = extent(truth.answer_space, truth.size)
    box_width, box_height = extent(truth.reference_space, truth.size)
    x, y = exact_fraction(point[0], width), exact_fraction(point[1], height)
    return any(
        exact_fraction(x1, box_width) <= x <= exact_fraction(x2, box_width)
        and exact_fraction(y1, box_height) <= y <= exact_fraction(y2, box_height)
        for x1, y1, x2, y2 in (true.box for true in truth.boxes)
    )


def exact_fraction(coordinate: float, side: float) -> Fraction:
    """Return coordinate / side as the exact fraction of their decimal notations."""
    return Fraction(repr(coordinate)) / Fraction(repr(side))
