"""Reading one action on a screen out of an answer.

    {"action": "click", "coordinate": [320, 240]}        {'action': 'click', 'point': [320, 240]}
    {"name": "computer_use", "arguments": {"action": "type", "text": "hello"}}
    click(320, 240)    click(x=320, y=240)    click(start_box='(320, 240)')    type(content='hello')    press_back()

The first line is how UI-R1 and GUI-R1 ask for actions, the second Qwen-VL's tools, in <tool_call> or not, the third
UI-TARS's; "Action:" may stand before it, at the start of a line or behind a "Thought:", and the whole may be fenced.
One action is due: a list of several is refused, and so is what follows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.final_answer import tag_content
from mmrl.rewards.parsing.json_text import decode_json, strip_fence
from mmrl.rewards.parsing.literals import MAX_CHARACTERS, parse_call, parse_literal
from mmrl.rewards.parsing.points import Point, point_from_json

ALIASES = {
    "tap": "click",
    "left_click": "click",
    "left_single": "click",
    "long_click": "long_press",
    "input": "type",
    "input_text": "type",
    "type_text": "type",
    "write": "type",
    "back": "press_back",
    "navigate_back": "press_back",
    "home": "press_home",
    "navigate_home": "press_home",
    "complete": "finished",
    "finish": "finished",
}
"""Other names of actions. A scroll and a swipe are two: the same direction means the opposite."""

_LEAD = re.compile(r"\A\s*Thought:.*?Action:|^[ \t]*Action:", re.DOTALL | re.MULTILINE)
_KINDS = ("action", "action_type")
_POINTS = ("coordinate", "point", "position", "start_box", "start_point")
_TEXTS = ("text", "input_text", "content", "value", "direction", "key", "keys", "app_name")


@dataclass(frozen=True)
class Action:
    """What is done, and the places and texts that were given with it, as they were written."""

    kind: str
    places: tuple[Any, ...] = ()
    texts: tuple[Any, ...] = ()

    @property
    def point(self) -> Point | None:
        """Where it is done; None if that was not said.

        Raises:
            InvalidAnswer: two places were given, or one that is no point.
        """
        place = _at_most_one(self.places, "points")
        return None if place is None else point_from_json(place)

    @property
    def text(self) -> str | None:
        """The text that goes with it, or the direction; None if there is none.

        Raises:
            InvalidAnswer: two texts were given, or one that is no text.
        """
        text = _at_most_one(self.texts, "texts")
        if isinstance(text, list) and all(isinstance(key, str) for key in text):
            text = " ".join(text)  # the keys of a hotkey
        if text is not None and not isinstance(text, str):
            raise InvalidAnswer(f"{text!r:.60} is no text")
        return text


def parse_action(text: str) -> Action:
    """The one action in an answer.

    Raises:
        InvalidAnswer: there is none, or several, or it cannot be read.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    answer = strip_fence(text).strip().removeprefix("json").strip()
    if answer.startswith("<tool_call>"):
        answer = tag_content(answer, "tool_call")
    if answer[:1] in ("{", "["):
        return _of_mapping(_mapping(answer))
    lead = _LEAD.search(answer)  # and not any "Action:", which may be what is typed
    return _of_call(answer[lead.end() :].strip() if lead else answer)


def canonical_action(kind: str) -> str:
    """The one name of an action: lower case, with underscores, and without aliases."""
    name = "_".join(kind.lower().replace("-", " ").replace("_", " ").split())
    return ALIASES.get(name, name)


def _mapping(answer: str) -> Mapping[str, Any]:
    try:
        value = decode_json(answer) if answer[-1] in "}]" else parse_literal(answer)
    except InvalidAnswer:
        value = parse_literal(answer)  # Python's quotes, or what says where the answer breaks off
    if isinstance(value, list):
        if len(value) != 1:
            raise InvalidAnswer(f"there are {len(value)} actions, not one")
        value = value[0]
    if not isinstance(value, Mapping):
        raise InvalidAnswer(f"{value!r:.60} is no action")
    inner = value.get("arguments")
    return inner if isinstance(inner, Mapping) else value


def _of_mapping(value: Mapping[str, Any]) -> Action:
    kinds = _given(value, _KINDS)
    if len(kinds) != 1 or not isinstance(kinds[0], str) or not kinds[0].strip():
        raise InvalidAnswer(f"{value!r:.60} does not name one action")
    return Action(canonical_action(kinds[0]), _places(value), _given(value, _TEXTS))


def _of_call(answer: str) -> Action:
    kind, arguments, named = parse_call(answer)
    numbers = [value for value in arguments if isinstance(value, int | float)]
    lists = [value for value in arguments if isinstance(value, list)]
    texts = [value for value in arguments if isinstance(value, str)]
    places = [*([numbers] if numbers else []), *lists, *_places(named)]
    return Action(canonical_action(kind), tuple(places), (*texts, *_given(named, _TEXTS)))


def _places(value: Mapping[str, Any]) -> tuple[Any, ...]:
    apart = [value["x"], value.get("y")] if value.get("x") is not None else None
    return _given({**value, "x": apart}, (*_POINTS, "x"))


def _given(value: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(value[key] for key in keys if value.get(key) is not None)


def _at_most_one(given: tuple[Any, ...], what: str) -> Any:
    if len(given) > 1:
        raise InvalidAnswer(f"the action has {len(given)} {what}, not one: {given!r:.60}")
    return given[0] if given else None
