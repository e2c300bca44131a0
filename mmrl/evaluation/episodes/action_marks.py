"""Points and boxes that actions name, and their outlines on pictures.

Read are the forms that rewards read (`12, 34`, `click(12, 34)`, `[{"bbox_2d": [1, 2, 3, 4]}]`, `(1,2),(3,4)`), pairs of
numbers that are all of a text (`12, 34, 40, 20`: two points), and the coordinates in the JSON of clicks and tool calls,
such as {"name": "crop", "arguments": {"box": [1, 2, 3, 4]}}. What an environment does with an action is its own matter:
a mark shows what the text says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image, ImageDraw

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import BOX_KEYS, Size, Space, check_box, extent, parse_boxes
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl.rewards.parsing.json_text import number
from mmrl.rewards.parsing.points import POINT_KEYS, check_point, parse_point

MAX_CHARACTERS = 20_000
"""The number of characters above which an action is not searched for marks."""
MAX_MARKS = 32
"""The largest number of marks of one action."""
LEAST_SIDE = 224
"""Pixels to which the longer side of a smaller picture is enlarged, so that marks are thin beside its pixels."""
_MOST_VALUES = 200  # lists and objects of a text that are tried
INK, EDGE = (255, 0, 200), (255, 255, 255)
_DEPTH = 8
_PAIR = r"[0-9]{1,6}(?:\.[0-9]{1,6})?[ ,;]{1,2}[0-9]{1,6}(?:\.[0-9]{1,6})?"
_PAIRS = re.compile(rf"{_PAIR}(?:[ ,;\n]{{1,2}}{_PAIR}){{1,{MAX_MARKS}}}")
_OPENING = re.compile(r"[\[{]")
_BOXES, _POINTS = (*BOX_KEYS[:3], "boxes"), (*POINT_KEYS, "points")
T = TypeVar("T")


@dataclass(frozen=True)
class ActionMark:
    """A point or a box in an action."""

    corners: tuple[float, ...]
    """x and y of a point, or x1, y1, x2 and y2 of a box, in shares of the picture."""
    image: int | None = None
    """The number of the picture, from 0 over the episode; None: the last one that was seen."""


def answered_space(sample: Sample) -> Space | None:
    """Return the coordinate space of a sample's answers; None if answers are not boxes."""
    boxes = ("grounding", "detection")
    if sample.task not in boxes and not any(each.name.startswith(("box_", "detection_")) for each in sample.rewards):
        return None
    spaces = [each.args["space"] for each in sample.rewards if "space" in each.args]
    return next(iter(spaces), None) or sample.metadata.get("space")


def marks_in(action: str, space: Space, sizes: Sequence[tuple[int, int]]) -> list[ActionMark]:
    """Return the points and boxes in an action, in its order; those outside of their picture are left out.

    Args:
        action: the text of a turn.
        space: the coordinate space of its numbers.
        sizes: width and height of each picture of the episode so far, as the policy saw it.
    """
    if len(action) > MAX_CHARACTERS or not sizes:
        return []
    found: list[ActionMark] = []
    for kind, values, image_number in _coordinates(action):
        image = image_number if isinstance(image_number, int) and 0 <= image_number < len(sizes) else None
        if mark := _mark(kind, values, space, sizes[-1 if image is None else image], image):
            found.append(mark)
        if len(found) == MAX_MARKS:
            return found
    return found or _plain_marks(action, space, sizes[-1])


def marked_picture(image: Image.Image, marks: Sequence[ActionMark]) -> Image.Image:
    """Return a picture in RGB with a frame for each box and a ring with a cross for each point.

    A small picture is enlarged by a whole factor, so that its pixels stay square.
    """
    factor = max(1, -(-LEAST_SIDE // max(image.size)))
    size = image.width * factor, image.height * factor
    drawn = image.convert("RGB").resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(drawn)
    thick = max(2, max(size) // 160)
    for mark in marks:
        places = [share * side for share, side in zip(mark.corners, size * 2, strict=False)]
        for colour, width in ((EDGE, thick + 2), (INK, thick)):
            (_draw_box if len(places) == 4 else _draw_point)(pen, places, colour, width, size)
    return drawn


def _draw_box(
    pen: ImageDraw.ImageDraw, places: Sequence[float], colour: tuple[int, int, int], width: int, size: tuple[int, int]
) -> None:
    x1, y1, x2, y2 = (min(max(place, 0), side - 1) for place, side in zip(places, size * 2, strict=True))
    pen.rectangle((x1, y1, x2, y2), outline=colour, width=width)


def _draw_point(
    pen: ImageDraw.ImageDraw, places: Sequence[float], colour: tuple[int, int, int], width: int, size: tuple[int, int]
) -> None:
    x, y = places
    radius = max(6, max(size) // 28)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
    for across, down in ((1, 0), (0, 1)):
        for side in (-1, 1):
            ends = [
                (x + side * across * reach, y + side * down * reach) for reach in (radius * 0.4, radius * 1.6)
            ]  # the middle stays free
            pen.line(ends, fill=colour, width=width)


def _mark(
    kind: str, values: Sequence[Any], space: Space, size: tuple[int, int], image: int | None
) -> ActionMark | None:
    numbers = _valid(lambda: [number(each, "a coordinate") for each in values])
    if numbers is None or len(numbers) != (4 if kind == "box" else 2):
        return None
    seen: Size = (float(size[0]), float(size[1]))
    check: Callable[..., tuple[float, ...]] = check_box if kind == "box" else check_point
    if (checked := _valid(lambda: check(numbers, space, seen))) is None:
        return None
    across = extent(space, seen) * 2
    return ActionMark(tuple(value / side for value, side in zip(checked, across, strict=False)), image)


def _plain_marks(action: str, space: Space, size: tuple[int, int]) -> list[ActionMark]:
    """Return the marks of an action without JSON objects: boxes, else one point, else the points that are all of it."""
    seen: Size = (float(size[0]), float(size[1]))
    text = _valid(lambda: answer_text(action))
    if not text:
        return []
    if _PAIRS.fullmatch(text):
        numbers = [float(each) for each in re.findall(r"[0-9.]+", text)]
        pairs = [_mark("point", pair, space, size, None) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        return [mark for mark in pairs if mark is not None][:MAX_MARKS]
    boxes = _valid(lambda: parse_boxes(text, space, seen)) or []
    points = [] if boxes else [_valid(lambda: parse_point(text, space, seen))]
    marks = [_mark("box", box, space, size, None) for box in boxes[:MAX_MARKS]]
    marks += [_mark("point", point, space, size, None) for point in points if point is not None]
    return [mark for mark in marks if mark is not None]


def _valid(parse: Callable[[], T]) -> T | None:
    try:
        return parse()
    except (InvalidAnswer, ValueError, OverflowError, RecursionError):  # a text of a model may be anything
        return None


def _coordinates(text: str) -> Iterator[tuple[str, Sequence[Any], Any]]:
    """Yield the kind (box or point), the numbers and the picture of each coordinate in the JSON of a text."""
    decoder = json.JSONDecoder()
    at = tries = 0
    while (opening := _OPENING.search(text, at)) and tries < _MOST_VALUES:
        tries += 1
        try:
            value, at = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            at = opening.start() + 1
            continue
        yield from _walk(value, None, 0)


def _walk(value: Any, image: Any, depth: int) -> Iterator[tuple[str, Sequence[Any], Any]]:
    if depth > _DEPTH:
        return
    if isinstance(value, list):
        for part in value:
            yield from _walk(part, image, depth + 1)
    elif isinstance(value, Mapping):
        image = value.get("image", image)
        if "x" in value and "y" in value:
            yield "point", (value["x"], value["y"]), image
        for key, part in value.items():
            kind = "box" if key in _BOXES else "point" if key in _POINTS else ""
            if kind and isinstance(part, list):
                several = part if part and all(isinstance(each, list) for each in part) else [part]
                yield from ((kind, numbers, image) for numbers in several)
            elif not kind:
                yield from _walk(part, image, depth + 1)
