"""Reading one point out of an answer.

Read are [320, 240], (320, 240), 320, 240, <point>320 240</point>, x=320, y=240 and click words around any of them;
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
"""x to the right, y down."""

POINT_KEYS = ("point_2d", "point", "coordinate", "coordinates", "position")

_NUMBER = r"-?[0-9]{1,12}(?:\.[0-9]{1,20})?"
_PAIR = re.compile(rf"(?:\bx ?[=:] ?)?(?P<x>{_NUMBER})(?: ?, ?| )(?:y ?[=:] ?)?(?P<y>{_NUMBER})", re.IGNORECASE)
_DIGIT = re.compile(r"[0-9]")
_BRACKET = re.compile(r"[\[{]")


def parse_point(text: str, space: Space, size: Size | None = None) -> Point:
    """The one point in an answer whose coordinates are in `space`; `size` is the picture's, if known.

    Words may stand around the point, but no other number: what names two points, or a box, is refused.

    Raises:
        InvalidAnswer: there is no point, or several, or `check_point` refuses it.
    """
    answer = strip_fence(require_ascii_digits(text)).strip()
    if "{" in answer or answer[:1] == "[":
        first, last = _BRACKET.search(answer), max(answer.rfind("]"), answer.rfind("}"))
        if first and _DIGIT.search(answer[: first.start()] + answer[last + 1 :]):
            raise InvalidAnswer(f"there are more numbers than the two of a point in {text[:60]!r}")
        return check_point(_point_in(decode_json(answer)), space, size)
    return check_point(parse_pair(answer), space, size)


def parse_pair(text: str) -> Point:
    """The two coordinates in a text that holds no other number.

    Raises:
        InvalidAnswer: there are fewer numbers in it, or more, or a bracket is open.
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
    """The point of two numbers in `space`.

    As for boxes, it may lie beyond the picture's edge by 1 % of the picture, and no further.

    Raises:
        InvalidAnswer: a coordinate is no finite number or outside the picture.
    """
    x, y = values
    if not (math.isfinite(x) and math.isfinite(y)):
        raise InvalidAnswer(f"the point ({x:g}, {y:g}) has a coordinate that is not finite")
    width, height = extent(space, size)
    if not (-OUTSIDE <= x / width <= 1 + OUTSIDE and -OUTSIDE <= y / height <= 1 + OUTSIDE):
        raise InvalidAnswer(f"({x:g}, {y:g}) lies outside the picture, which is {width:g} by {height:g} in {space}")
    return x, y


def point_from_json(value: Any) -> Point:
    """A point from what JSON holds: [x, y], or text that names one.

    Raises:
        InvalidAnswer: it is something else.
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
        ways = [key for key in POINT_KEYS if key in value] + (["x"] if "x" in value else [])
        if len(ways) != 1:
            raise InvalidAnswer(f"an object names {len(ways)} points, not one: {value!r:.60}")
        return point_from_json([value["x"], value.get("y")] if ways == ["x"] else value[ways[0]])
    return point_from_json(value)


def check_comparable(truth: TrueBoxes) -> None:
    """Refuse a sample whose boxes and points cannot be compared.

    Raises:
        ScoringFailed: one of them counts pixels, the other shares of a picture whose size is not known.
    """
    answer, reference = truth.answer_space, truth.reference_space
    if truth.size is None and answer != reference and "pixel" in (answer, reference):
        raise ScoringFailed(
            f"points in {answer} cannot be compared with boxes in {reference} without references['size']", "reference"
        )


def is_inside(point: Point, truth: TrueBoxes) -> bool:
    """Whether an answered point lies in any of the true boxes or on its edge.

    Compared as the fractions that the decimals stand for: where 108.8 of 640 pixels meets 170 of 1000, an edge stays an
    edge.
    """
    (width, height), (box_width, box_height) = (
        extent(truth.answer_space, truth.size),
        extent(truth.reference_space, truth.size),
    )
    x, y = share(point[0], width), share(point[1], height)
    return any(
        share(x1, box_width) <= x <= share(x2, box_width) and share(y1, box_height) <= y <= share(y2, box_height)
        for x1, y1, x2, y2 in (true.box for true in truth.boxes)
    )


def share(coordinate: float, extent: float) -> Fraction:
    """Where a coordinate lies, as the fraction of the picture that its decimals stand for."""
    return Fraction(repr(coordinate)) / Fraction(repr(extent))
