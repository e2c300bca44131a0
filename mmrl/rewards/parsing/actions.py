"""Reading one action on a screen out of an answer.

    {"action": "click", "coordinate": [320, 240]}        {'action': 'click', 'point': [320, 240]}
    {"name": "computer_use", "arguments": {"action": "type", "text": "hello"}}
    click(320, 240)    click(x=320, y=240)    click(start_box='(320, 240)')    type(content='hello')    press_back()

The first line is how UI-R1 and GUI-R1 ask for actions, the second Qwen-VL's tools, in <tool_call> or not, the third
UI-TARS's; "Action:" may stand before it, at the start of a line or behind a "Thought:", and the whole may be fenced.
One action is due: a list of several is refused, and so is what follows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.final_answer import tag_content
from mmrl.rewards.parsing.json_text import decode_json, strip_fence
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


# A small grammar for what models write in place of JSON: Python literals and one call of a function.
#
#     {'action': 'click', 'point': [320, 240]}
#     click(start_box='(320, 240)')        click(320, 240)        press_back()
#
# Read are text in single or double quotes, numbers, True, False, None (also in JSON's spelling), lists, tuples and
# mappings. Nothing is evaluated, the depth is bounded, and the whole text must be consumed.


MAX_CHARACTERS = 10_000
"""Characters past which a text is not read."""
_MAX_DEPTH = 8

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
    r"""|(?P<number>-?[0-9]{1,15}(?:\.[0-9]{0,20})?(?![\w.]))"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]{0,63})"""
    r"""|(?P<sign>[\[\](){},:=]))"""
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_NAMED = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}

Token = tuple[str, str]
"""Its kind (text, number, name or sign) and how it is written."""


def parse_literal(text: str) -> Any:
    """The one literal that a text is.

    Raises:
        InvalidAnswer: it is no literal, or something follows it, or a key stands twice.
    """
    tokens = _Tokens(text)
    value = _parse_value(tokens, 0)
    tokens.expect_end()
    return value


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, the arguments and the named arguments of the one call that a text is.

    Raises:
        InvalidAnswer: it is no call of one function with literals, or a named argument stands twice.
    """
    tokens = _Tokens(text)
    name = tokens.take("name")
    tokens.take("sign", "(")
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    while not tokens.have(")"):
        if tokens.kind == "name" and tokens.written not in _NAMED:
            key = tokens.take("name")
            tokens.take("sign", "=")
            _put(named, key, _parse_value(tokens, 0))
        elif named:
            raise InvalidAnswer(f"an argument without a name follows a named one in {text[:60]!r}")
        else:
            arguments.append(_parse_value(tokens, 0))
        if not tokens.have(")"):
            tokens.take("sign", ",")
    tokens.take("sign", ")")
    tokens.expect_end()
    return name, arguments, named


class _Tokens:
    """The tokens of a text, of which one is looked at."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read")
        self.text, self.at = text.rstrip(), 0
        self.kind, self.written = "", ""
        self._step()

    def have(self, sign: str) -> bool:
        """Whether the token is this sign."""
        return (self.kind, self.written) == ("sign", sign)

    def take(self, kind: str, written: str | None = None) -> str:
        """The token, which must be of a kind, and step to the next."""
        if self.kind != kind or written not in (None, self.written):
            due = repr(written) if written else f"a {kind}"
            raise InvalidAnswer(f"{due} is due, not {self.written or 'the end'!r:.40}, in {self.text[:60]!r}")
        taken = self.written
        self._step()
        return taken

    def expect_end(self) -> None:
        """Refuse what follows."""
        if self.kind != "end":
            raise InvalidAnswer(f"{self.written!r:.40} follows where the answer should end: {self.text[:60]!r}")

    def _step(self) -> None:
        if self.at == len(self.text):
            self.kind, self.written = "end", ""
            return
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise InvalidAnswer(f"{self.text[self.at : self.at + 20].strip()!r} cannot be read in {self.text[:60]!r}")
        self.at = found.end()
        self.kind = str(found.lastgroup)
        self.written = found[self.kind]


def _parse_value(tokens: _Tokens, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"the answer stands more than {_MAX_DEPTH} brackets deep")
    if tokens.kind == "text":
        return _ESCAPE.sub(_unescaped, tokens.take("text")[1:-1])
    if tokens.kind == "number":
        return _parse_float(tokens.take("number"))
    if tokens.kind == "name" and tokens.written in _NAMED:
        return _NAMED[tokens.take("name")]
    if tokens.have("{"):
        return _parse_mapping(tokens, depth)
    for opening, closing in ("[]", "()"):
        if tokens.have(opening):
            return _parse_items(tokens, depth, opening, closing)
    raise InvalidAnswer(f"{tokens.written or 'the end'!r:.40} is no value in {tokens.text[:60]!r}")


def _parse_items(tokens: _Tokens, depth: int, opening: str, closing: str) -> list[Any]:
    tokens.take("sign", opening)
    items = []
    while not tokens.have(closing):
        items.append(_parse_value(tokens, depth + 1))
        if not tokens.have(closing):
            tokens.take("sign", ",")
    tokens.take("sign", closing)
    return items


def _parse_mapping(tokens: _Tokens, depth: int) -> dict[str, Any]:
    tokens.take("sign", "{")
    made: dict[str, Any] = {}
    while not tokens.have("}"):
        key = _ESCAPE.sub(_unescaped, tokens.take("text")[1:-1])
        tokens.take("sign", ":")
        _put(made, key, _parse_value(tokens, depth + 1))
        if not tokens.have("}"):
            tokens.take("sign", ",")
    tokens.take("sign", "}")
    return made


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    if key in mapping:
        raise InvalidAnswer(f"{key!r:.40} is given twice")
    mapping[key] = value


def _parse_float(written: str) -> int | float:
    value = float(written)
    if not math.isfinite(value):
        raise InvalidAnswer(f"{written[:40]} is no finite number")
    return value if "." in written else int(written)


def _unescaped(escape: re.Match[str]) -> str:
    """What is escaped without need keeps its backslash, as in Python: C:\\dir."""
    return _ESCAPED.get(escape[1], escape[0])
