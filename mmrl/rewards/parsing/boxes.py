"""Parse boxes from answers, and the true boxes of a sample from its references.

    [{"bbox_2d": [10, 20, 110, 220], "label": "dog"}]     JSON; the keys bbox_2d, bbox or box; label or category;
                                                          score or confidence; fenced or not; an object alone, or
                                                          inside others ({"objects": [...]})
    [10, 20, 110, 220]  or  [[10, 20, 110, 220], ...]     bare lists, with or without words around them
    <|object_ref_start|>dog<|object_ref_end|>
    <|box_start|>(10,20),(110,220)<|box_end|>             Qwen-VL; also <ref>dog</ref><box>(10,20),(110,220)</box>
    <loc0128><loc0064><loc0512><loc0256> dog              PaliGemma: y1, x1, y2, x2 in 1/1024 of the picture
    []  or  None                                          no boxes

A box is always x1, y1, x2, y2 with x1 < x2 and y1 < y2: `bbox` is not COCO's x, y, width, height. Nothing is repaired.
The whole answer is invalid if any box in it

- has swapped corners (they are never sorted: GIoU would be 1 for them), or is thinner than a billionth of the space;
- has a coordinate that is NaN, infinite, or more than 1 % of the picture beyond its edge. A coordinate within that
  1 % is used unchanged, not clipped, so it costs overlap;
- has numbers written as text, booleans in place of numbers, a label that is not a text, two keys for one thing.

The answer is also invalid if something beside the boxes could be meant in their place (digits in the words around them,
an empty list, lists of numbers under other keys of an object), or if it has more than `MAX_BOXES` boxes. Time is linear
in the length of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.parsing.json_text import check_no_digits, json_values, number, split_fence

Box: TypeAlias = tuple[float, float, float, float]
"""x1, y1, x2, y2."""
Size: TypeAlias = tuple[float, float]
"""Width and height of the picture in pixels."""
Space = Literal["pixel", "norm_1", "norm_1000"]
"""The unit of coordinates: pixels, fractions of the picture, or thousandths of it."""
SPACES: tuple[Space, ...] = get_args(Space)

MAX_BOXES = 1000
OUTSIDE = 0.01  # fraction of the picture by which a coordinate may lie beyond its edge
MAX_SIDE = 100_000.0  # assumed largest side of a picture in pixels if its size is not known
_MIN_RELATIVE_SIDE = 1e-9
_MAX_DEPTH = 8

_BOX_KEYS, _LABEL_KEYS, _SCORE_KEYS = ("bbox_2d", "bbox", "box"), ("label", "category"), ("score", "confidence")
BOX_KEYS = (*_BOX_KEYS, *_LABEL_KEYS, *_SCORE_KEYS)  # keys that are read from an object that is a box
_NO_BOXES = ("none", "null")
# ASCII digits only: \d would also match look-alikes. Spaces are collapsed before, so ` ?` is enough.
_NUMBER = r"(-?[0-9]{1,12}(?:\.[0-9]{1,20})?)"
_POINT = rf"\( ?{_NUMBER} ?, ?{_NUMBER} ?\)"
_CORNERS = re.compile(rf"(?:<\|object_ref_start\|>|<ref>)([^<]{{1,200}})<|{_POINT} ?,? ?{_POINT}")
_DIGITS = re.compile(r"[0-9]+")
_EMPTY = re.compile(r"\[\s?\]")
_LOC = re.compile(r"<loc([0-9]{4})>" * 4 + r"([^<;]{0,200})")


@dataclass(frozen=True)
class LabelledBox:
    """A box with an optional label and an optional confidence score."""

    box: Box
    label: str | None = None
    score: float | None = None  # in [0, 1]


def parse_labelled_boxes(text: str, space: Space, size: Size | None = None) -> list[LabelledBox]:
    """Return the boxes in an answer, in its order; an empty list only if the answer states that there are none.

    Args:
        text: the final answer (see `final_answer.answer_text`).
        space: the coordinate space of the answer.
        size: width and height of the picture in pixels; None if unknown.

    Raises:
        InvalidAnswer: the answer has no boxes, or a malformed one (see the module's docstring).
    """
    text, *around = split_fence(text)
    check_no_digits(" ".join(around))
    if "<loc" in text:
        return list(_bounded(_loc_boxes(text, space, size)))
    if "[" in text or "{" in text:
        return list(_bounded(_checked(_walk(json_values(text)), space, size)))
    if "(" in text:
        return list(_bounded(_checked(_corner_boxes(text), space, size)))
    if text.strip().casefold() in _NO_BOXES:
        return []
    raise InvalidAnswer(f"no box in {text!r:.60}")


def parse_boxes(text: str, space: Space, size: Size | None = None) -> list[Box]:
    """Return the boxes of `parse_labelled_boxes` without labels."""
    return [found.box for found in parse_labelled_boxes(text, space, size)]


def parse_box(text: str, space: Space, size: Size | None = None) -> Box:
    """Return the one box in an answer.

    Raises:
        InvalidAnswer: as `parse_labelled_boxes`, or there is not exactly one box.
    """
    boxes = parse_boxes(text, space, size)
    if len(boxes) != 1:
        raise InvalidAnswer(f"there are {len(boxes)} boxes, not one")
    return boxes[0]


def boxes_from_json(value: Any, space: Space, size: Size | None = None) -> list[LabelledBox]:
    """Return the boxes in a JSON value (lists and mappings) or in a text, checked as by `parse_labelled_boxes`."""
    if isinstance(value, str):
        return parse_labelled_boxes(value, space, size)
    return list(_bounded(_checked(_walk([value]), space, size)))


def check_box(values: Sequence[float], space: Space, size: Size | None = None) -> Box:
    """Return four numbers in `space` as a box.

    Raises:
        InvalidAnswer: swapped corners, no area, or coordinates that are not finite or outside the picture.
    """
    x1, y1, x2, y2 = values
    text = f"[{x1:g}, {y1:g}, {x2:g}, {y2:g}]"
    if not all(map(math.isfinite, values)):
        raise InvalidAnswer(f"the box {text} has a coordinate that is not finite")
    if x1 > x2 or y1 > y2:
        raise InvalidAnswer(f"the corners of {text} are swapped; expected x1 < x2 and y1 < y2")
    width, height = extent(space, size)
    if x2 - x1 < width * _MIN_RELATIVE_SIDE or y2 - y1 < height * _MIN_RELATIVE_SIDE:
        raise InvalidAnswer(f"the box {text} has no area")
    if min(x1 / width, y1 / height) < -OUTSIDE or max(x2 / width, y2 / height) > 1 + OUTSIDE:
        raise InvalidAnswer(f"the box {text} lies outside the picture, which is {width:g} by {height:g} in {space}")
    return x1, y1, x2, y2


def extent(space: Space, size: Size | None = None) -> Size:
    """Return width and height of the picture in `space`; `MAX_SIDE` for pixels if its size is not known."""
    if space == "pixel":
        return size or (MAX_SIDE, MAX_SIDE)
    return (1.0, 1.0) if space == "norm_1" else (1000.0, 1000.0)


def convert_box(box: Box, source: Space, target: Space, size: Size | None = None) -> Box:
    """Return the box, whose coordinates are in `source`, in the space `target`.

    To norm_1 each coordinate is divided once, so that two boxes which are equal as fractions are equal as floats.

    Raises:
        ScoringFailed: one of the spaces is pixel, and the picture's size is not known.
    """
    if source == target:
        return box
    if size is None and "pixel" in (source, target):
        raise ScoringFailed(
            f"boxes in {source} cannot be compared with boxes in {target} without references['size'] = [width, height]",
            "reference",
        )
    (w, h), (to_w, to_h) = extent(source, size), extent(target, size)
    x1, y1, x2, y2 = box
    return x1 * to_w / w, y1 * to_h / h, x2 * to_w / w, y2 * to_h / h


def check_space(name: str, space: str | None) -> None:
    """Check a reward's argument `space`.

    Raises:
        RewardError: `space` is neither None nor one of `SPACES`.
    """
    if space is not None and space not in SPACES:
        raise RewardError(f"{name}: space is {space!r}; it is one of {', '.join(SPACES)}, or None for the reference's")


_Found: TypeAlias = tuple[Sequence[float], str | None, float | None]


def _walk(value: Any, depth: int = 0) -> Iterator[_Found]:
    """Yield the boxes, labels and scores in a JSON value, in order."""
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"the boxes stand more than {_MAX_DEPTH} lists or objects deep")
    if isinstance(value, list | tuple):
        if any(isinstance(part, int | float | str) or part is None for part in value):
            yield _four(value), None, None
            return
        for part in value:
            if isinstance(part, list | tuple) and not part and depth:
                raise InvalidAnswer("an empty list stands in the place of a box")
            empty = True
            for found in _walk(part, depth + 1):
                empty = False
                yield found
            if empty and len(value) > 1:
                raise InvalidAnswer(f"an empty list stands beside other answers: {value!r:.60}")
    elif isinstance(value, dict):
        if (place := _one_of(value, _BOX_KEYS)) is not None:
            named, sure = _one_of(value, _LABEL_KEYS), _one_of(value, _SCORE_KEYS)
            for key in value.keys() - {place, named, sure}:
                if _has_list_of_numbers(value[key], depth):
                    raise InvalidAnswer(f"beside the box, {key!r:.40} has a list of numbers: {value[key]!r:.60}")
            yield _four(value[place]), _label(value[named]) if named else None, _score(value[sure]) if sure else None
            return
        inner = [part for part in value.values() if isinstance(part, list | dict)]
        if len(inner) != 1:
            raise InvalidAnswer(f"an object has none of the keys {', '.join(_BOX_KEYS)}: {value!r:.60}")
        yield from _walk(inner[0], depth + 1)
    else:
        raise InvalidAnswer(f"{value!r:.60} is not a box")


def _has_list_of_numbers(value: Any, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"an object stands more than {_MAX_DEPTH} lists or objects deep")
    if isinstance(value, dict):
        return any(_has_list_of_numbers(part, depth + 1) for part in value.values())
    if not isinstance(value, list | tuple):
        return False
    return any(isinstance(part, int | float) or _has_list_of_numbers(part, depth + 1) for part in value)


def _four(value: Any) -> list[float]:
    if not isinstance(value, list | tuple) or len(value) != 4:
        raise InvalidAnswer(f"a box has four numbers, not {value!r:.60}")
    return [number(part, "a coordinate") for part in value]


def _one_of(value: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    present = [key for key in keys if key in value]
    if len(present) > 1:
        raise InvalidAnswer(f"an object has both {present[0]} and {present[1]}")
    return present[0] if present else None


def _label(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidAnswer(f"a label is {value!r:.40}, not a text")
    return value


def _score(value: Any) -> float | None:
    if value is None:
        return None
    score = number(value, "a score")
    if not 0 <= score <= 1:
        raise InvalidAnswer(f"a score is {score:g}, not in [0, 1]")
    return score


def _corner_boxes(text: str) -> Iterator[_Found]:
    text = " ".join(text.split())
    label, points = None, 0
    for found in _CORNERS.finditer(text):
        named, *numbers = found.groups()
        if named is not None:
            label = named.strip()
            points += named.count("(")  # part of the name, not of a point
            continue
        points += 2
        yield [float(part) for part in numbers], label, None
    if text.count("(") != points:
        raise InvalidAnswer(f"a bracket opens no pair of corners (x1,y1),(x2,y2): {text!r:.60}")
    check_no_digits(_CORNERS.sub(" ", text))


def _loc_boxes(text: str, space: Space, size: Size | None) -> Iterator[LabelledBox]:
    if space == "pixel" and size is None:
        raise InvalidAnswer("<loc> tokens are fractions of a picture whose size is not known here; expected pixels")
    found = _LOC.findall(text)
    if 4 * len(found) != text.count("<loc"):
        raise InvalidAnswer("<loc> tokens do not come in fours of four digits")
    if _EMPTY.search(text):
        raise InvalidAnswer("an empty list stands beside <loc> tokens")
    check_no_digits(_LOC.sub(" ", text))
    for *tokens, label in found:
        if len(_DIGITS.findall(label)) > 1:  # "dog 2" is a label; "dog (1,1),(2,2)" a second box
            raise InvalidAnswer(f"numbers stand behind <loc> tokens: {label!r:.60}")
        y1, x1, y2, x2 = (int(token) / 1024 for token in tokens)
        box = check_box((x1, y1, x2, y2), "norm_1")
        yield LabelledBox(convert_box(box, "norm_1", space, size), label.strip() or None)


def _checked(found: Iterator[_Found], space: Space, size: Size | None) -> Iterator[LabelledBox]:
    for values, label, score in found:
        yield LabelledBox(check_box(values, space, size), label, score)


def _bounded(boxes: Iterator[LabelledBox]) -> Iterator[LabelledBox]:
    for index, box in enumerate(boxes):
        if index == MAX_BOXES:
            raise InvalidAnswer(f"there are more than {MAX_BOXES} boxes")
        yield box


@dataclass(frozen=True)
class TrueBoxes:
    """The true boxes of a sample, and the coordinate space of its answers."""

    boxes: tuple[LabelledBox, ...]  # in `reference_space`
    reference_space: Space
    answer_space: Space
    size: Size | None  # of the picture, in pixels

    @property
    def labelled(self) -> bool:
        """True if the true boxes have labels."""
        return any(box.label is not None for box in self.boxes)

    def in_common_space(self, answered: Sequence[Box]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return answered [N, 4] and true [M, 4] boxes in one space, in which the picture has `common_size`.

        If the picture's size is known, the unit is as long across as down: a pixel, or a thousandth of one where both
        spaces are norm_1000, whose whole numbers are exact so. Boxes that are equal as fractions come out equal as
        floats.
        """
        return self._array(answered, self.answer_space), self._array(
            [box.box for box in self.boxes], self.reference_space
        )

    @property
    def common_size(self) -> Size:
        """The picture's width and height in the unit of `in_common_space`.

        Raises:
            ScoringFailed: the unit is a pixel, and the picture's size is not known.
        """
        if self.size is None:
            if self._common == "pixel":
                raise ScoringFailed("boxes in pixel need references['size'] = [width, height]", "reference")
            return extent(self._common)
        times = 1000.0 if self._common == "norm_1000" else 1.0
        return self.size[0] * times, self.size[1] * times

    @property
    def _common(self) -> Space:
        return self.reference_space if self.reference_space == self.answer_space else "norm_1"

    def _array(self, boxes: Sequence[Box], space: Space) -> NDArray[np.float64]:
        common = self._common
        values = np.array([convert_box(box, space, common, self.size) for box in boxes], np.float64).reshape(-1, 4)
        return values * (self.size * 2) if self.size and common != "pixel" else values


def true_boxes(references: Mapping[str, Any], space: Space | None = None) -> TrueBoxes:
    """Return the true boxes of a sample from its references.

    The reference `answer` is [x1, y1, x2, y2], or a list of {"box": [...], "label": ...}, or JSON text of either, or []
    for no boxes. Other keys beside a box, such as COCO's `segmentation`, are ignored in data and invalid in JSON text.
    The reference `space` is the coordinate space of `answer`, and `size` the picture's [width, height], if known. The
    argument `space` is the coordinate space of answers; None means the reference's.

    Raises:
        ScoringFailed: the references are malformed, which is not the answer's fault.
    """
    reference_space, size = references.get("space"), _size(references.get("size"))
    if reference_space not in SPACES:
        raise ScoringFailed(f"references['space'] is {reference_space!r}, not one of {', '.join(SPACES)}", "reference")
    try:
        boxes = tuple(boxes_from_json(_without_other_keys(references["answer"]), reference_space, size))
    except InvalidAnswer as err:
        raise ScoringFailed(f"references['answer']: {err}", "reference") from err
    unlabelled = sum(box.label is None for box in boxes)
    if unlabelled not in (0, len(boxes)):
        raise ScoringFailed(f"references['answer']: {unlabelled} of {len(boxes)} boxes have no label", "reference")
    return TrueBoxes(boxes, reference_space, space or reference_space, size)


def _without_other_keys(value: Any) -> Any:
    """Return the value with only the keys in `BOX_KEYS` in objects that are boxes."""
    if isinstance(value, list | tuple):
        return [_without_other_keys(part) for part in value]
    if isinstance(value, Mapping) and any(key in value for key in BOX_KEYS):
        return {key: part for key, part in value.items() if key in BOX_KEYS}
    return value


def _size(value: Any) -> Size | None:
    if value is None:
        return None
    fit = isinstance(value, list | tuple) and len(value) == 2
    if not fit or not all(isinstance(side, int | float) and math.isfinite(side) and side > 0 for side in value):
        raise ScoringFailed(f"references['size'] is {value!r:.60}; expected [width, height] in pixels", "reference")
    return float(value[0]), float(value[1])
