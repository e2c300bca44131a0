"""Forms of answers that models write which were never taught one, rewritten as the strict parsers read them.

    10, 20, 110, 220      (10, 20, 110, 220)                                    a box
    x1=10, y1=20, x2=110, y2=220      {"x1": 10, "y1": 20, "x2": 110, "y2": 220, "label": "dog"}
    <point x="31.5" y="44.0" alt="dog">dog</point>                              Molmo: percent of the picture
    <loc0128><loc0064>                                                          PaliGemma: y, x in 1/1024 of the picture
    45%      45 km                                                              a chart's value, beside 45
    The sign reads "STOP".                                                      a quotation in a sentence

A reading is `strict`, the default and the one to train with, or `lenient`, for base models and for the evaluation of
other people's models. It is set by a reward's argument `reading`, by a sample for all its rewards
(`references["reading"]`), or for a run (`answers.reading`). A text that is in none of these forms, or that could be
read in two ways, is left as it is, for the strict parser to judge; so nothing is valid here that names two answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.boxes import Size, Space, extent
from mmrl.rewards.parsing.json_text import json_values
from mmrl.rewards.parsing.numbers import require_ascii_digits

Reading = Literal["strict", "lenient"]

_NUMBER = r"-?[0-9]{1,12}(?:\.[0-9]{1,20})?"
_FOUR = re.compile(rf"\(? ?({_NUMBER}) ?, ?({_NUMBER}) ?, ?({_NUMBER}) ?, ?({_NUMBER}) ?\)?\.?")
_CORNERS = ("x1", "y1", "x2", "y2")
_NAMED = re.compile(r"\b" + r" ?[,;]? ?\b".join(rf"{name} ?[=:] ?({_NUMBER})" for name in _CORNERS), re.IGNORECASE)
_MOLMO = re.compile(rf'<point x="({_NUMBER})" y="({_NUMBER})"(?: alt="[^"<>]{{0,200}}")?>[^<>]{{0,200}}</point>')
_LOCS = re.compile(r"<loc([0-9]{4})><loc([0-9]{4})>(?: ?[^<>0-9;]{0,200})")
_VALUE = re.compile(r"([^\s\w]{0,2}[-+]?[0-9][0-9.,]{0,30}) ?(?:%|percent|[^\W\d_]{1,20}(?:/[^\W\d_]{1,10})?)\.?")
_QUOTED = re.compile('"([^"\n]{1,2000})"|\u201c([^\u201c\u201d\n]{1,2000})\u201d|`([^`\n]{1,2000})`')


def check_reading(name: str, reading: str | None) -> None:
    """Check a reward's argument `reading`.

    Raises:
        RewardError: `reading` is neither None nor a `Reading`.
    """
    if reading is not None and reading not in get_args(Reading):
        raise RewardError(f"{name}: reading is {reading!r}; it is strict or lenient, or None for the sample's")


def resolve_reading(item: RewardInput, own: Reading | None = None) -> Reading:
    """Return the reading of an answer: the reward's own, or if that is None, the sample's, which is strict if unset.

    Raises:
        ScoringFailed: `references["reading"]` is not a `Reading`.
    """
    declared: Reading = item.references.get("reading", "strict")
    if declared not in get_args(Reading):
        raise ScoringFailed(f"references['reading'] is {declared!r:.40}; it is strict or lenient", "reference")
    return own or declared


def lenient_boxes(text: str) -> str:
    """Return a text whose boxes are in one of the forms above with JSON in their place; any other text unchanged.

    >>> lenient_boxes("(10, 20, 110, 220)"), lenient_boxes("x1=10, y1=20, x2=110, y2=220")
    ('[10, 20, 110, 220]', '[10, 20, 110, 220]')
    """
    if "<loc" in text or len(text) > 100_000:
        return text
    if "{" in text:
        return _corner_objects(text)
    if "[" in text:
        return text
    read = " ".join(text.split())
    if found := _FOUR.fullmatch(read):
        return f"[{', '.join(found.groups())}]"
    found_named = list(_NAMED.finditer(read))
    if not found_named or _NAMED.sub("", read).count("=") or re.search(r"[0-9]", _NAMED.sub("", read)):
        return text
    boxes = [f"[{', '.join(each.groups())}]" for each in found_named]
    return boxes[0] if len(boxes) == 1 else f"[{', '.join(boxes)}]"


def lenient_point(text: str, space: Space, size: Size | None = None) -> str:
    """Return a text that is one point of Molmo or PaliGemma as [x, y] in `space`; any other text unchanged.

    Raises:
        InvalidAnswer: the space is pixel, and the size of the picture is not known.
    """
    read = " ".join(text.split())
    molmo, locs = _MOLMO.findall(read), _LOCS.fullmatch(read)
    if len(molmo) == 1 and not re.search(r"[0-9]|<points?\b", _MOLMO.sub("", read)):
        fractions = (float(molmo[0][0]) / 100, float(molmo[0][1]) / 100)
    elif locs:
        fractions = (int(locs[2]) / 1024, int(locs[1]) / 1024)
    else:
        return text
    if space == "pixel" and size is None:
        raise InvalidAnswer("the point is in fractions of a picture whose size is not known here; expected pixels")
    width, height = extent(space, size)
    return json.dumps([fractions[0] * width, fractions[1] * height])


def lenient_value(text: str) -> str:
    """Return the number before a percent sign or a unit; any other text unchanged.

    >>> lenient_value("45%"), lenient_value("1,200 km/h"), lenient_value("45 or 46")
    ('45', '1,200', '45 or 46')
    """
    if len(text) > 100:
        return text
    found = _VALUE.fullmatch(require_ascii_digits(text.strip()))
    return found[1] if found else text


def lenient_quotation(text: str) -> str:
    """Return the one quotation in a text with words around it; any other text unchanged.

    >>> lenient_quotation('The sign reads "STOP".'), lenient_quotation('"A" or "B"')
    ('STOP', '"A" or "B"')
    """
    found = [next(part for part in each if part) for each in _QUOTED.findall(text[:10_000])]
    return found[0].strip() if len(found) == 1 and len(text) <= 10_000 else text


def _corner_objects(text: str) -> str:
    """Return JSON whose objects with the keys x1, y1, x2 and y2 have the key bbox_2d instead."""
    changed = False

    def rewritten(value: Any, depth: int) -> Any:
        nonlocal changed
        if depth > 8:
            raise InvalidAnswer("the boxes stand more than 8 lists or objects deep")
        if isinstance(value, list):
            return [rewritten(each, depth + 1) for each in value]
        if not isinstance(value, Mapping):
            return value
        if all(name in value for name in _CORNERS):
            changed = True
            others = {name: each for name, each in value.items() if name not in _CORNERS}
            return {"bbox_2d": [value[name] for name in _CORNERS], **others}
        return {name: rewritten(each, depth + 1) for name, each in value.items()}

    values = rewritten(json_values(text), 0)
    if not changed:
        return text
    return json.dumps(values[0] if len(values) == 1 else values)
