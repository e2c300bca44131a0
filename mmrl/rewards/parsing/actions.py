"""Parse one action on a screen from an answer.

    {"action": "click", "coordinate": [320, 240]}        {'action': 'click', 'point': [320, 240]}
    {"name": "computer_use", "arguments": {"action": "type", "text": "hello"}}
    click(320, 240)    click(x=320, y=240)    click(start_box='(320, 240)')    type(content='hello')    press_back()

The first line is the format of UI-R1 and GUI-R1, the second that of Qwen-VL's tools, with or without <tool_call>, the
third that of UI-TARS, which may follow "Action:" at the start of a line or after a "Thought:". The answer may be
fenced. Exactly one action is expected: a list of several is invalid, and so is text after the action.

Calls and literals have a small grammar (`parse_call`, `parse_literal`): text in single or double quotes, numbers, True,
False, None (also in JSON's spelling), lists, tuples and mappings. Nothing is evaluated, the depth is bounded, and the
whole text must be consumed. Python's `ast` would accept more, and warn about escapes for the whole process.
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
"""Other names of actions. Scroll and swipe differ: the same direction means the opposite."""

MAX_CHARACTERS = 10_000
"""The number of characters above which a text is not parsed."""
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
"""The kind of a token (text, number, name or sign) and its text."""

_LEAD = re.compile(r"\A\s*Thought:.*?Action:|^[ \t]*Action:", re.DOTALL | re.MULTILINE)
_KINDS = ("action", "action_type")
_POINTS = ("coordinate", "point", "position", "start_box", "start_point")
_TEXTS = ("text", "input_text", "content", "value", "direction", "key", "keys", "app_name")


@dataclass(frozen=True)
class Action:
    """An action, with its places and texts as they are written in the answer."""

    kind: str
    places: tuple[Any, ...] = ()
    texts: tuple[Any, ...] = ()

    @property
    def point(self) -> Point | None:
        """The point of the action; None if it has none.

        Raises:
            InvalidAnswer: the action has two places, or one that is not a point.
        """
        place = _at_most_one(self.places, "points")
        return None if place is None else point_from_json(place)

    @property
    def text(self) -> str | None:
        """The text of the action, or its direction; None if it has neither.

        Raises:
            InvalidAnswer: the action has two texts, or one that is not a string.
        """
        text = _at_most_one(self.texts, "texts")
        if isinstance(text, list) and all(isinstance(key, str) for key in text):
            text = " ".join(text)  # the keys of a hotkey
        if text is not None and not isinstance(text, str):
            raise InvalidAnswer(f"{text!r:.60} is not a text")
        return text


def parse_action(text: str) -> Action:
    """Return the one action in an answer.

    Raises:
        InvalidAnswer: the answer has no action or several, or the action is malformed.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    answer = strip_fence(text).strip().removeprefix("json").strip()
    if answer.startswith("<tool_call>"):
        answer = tag_content(answer, "tool_call")
    if answer[:1] in ("{", "["):
        return _of_mapping(_mapping(answer))
    lead = _LEAD.search(answer)  # not every "Action:", which may be part of a typed text
    return _of_call(answer[lead.end() :].strip() if lead else answer)


def canonical_action(kind: str) -> str:
    """Return the canonical name of an action: lower case, with underscores, aliases resolved."""
    name = "_".join(kind.lower().replace("-", " ").replace("_", " ").split())
    return ALIASES.get(name, name)


def _mapping(answer: str) -> Mapping[str, Any]:
    try:
        value = decode_json(answer) if answer[-1] in "}]" else parse_literal(answer)
    except InvalidAnswer:
        value = parse_literal(answer)  # Python's quotes; otherwise the error says where the answer breaks off
    if isinstance(value, list):
        if len(value) != 1:
            raise InvalidAnswer(f"there are {len(value)} actions, not one")
        value = value[0]
    if not isinstance(value, Mapping):
        raise InvalidAnswer(f"{value!r:.60} is not an action")
    inner = value.get("arguments")
    return inner if isinstance(inner, Mapping) else value


def _of_mapping(value: Mapping[str, Any]) -> Action:
    kinds = _values(value, _KINDS)
    if len(kinds) != 1 or not isinstance(kinds[0], str) or not kinds[0].strip():
        raise InvalidAnswer(f"{value!r:.60} does not name one action")
    return Action(canonical_action(kinds[0]), _places(value), _values(value, _TEXTS))


def _of_call(answer: str) -> Action:
    kind, arguments, named = parse_call(answer)
    numbers = [value for value in arguments if isinstance(value, int | float)]
    lists = [value for value in arguments if isinstance(value, list)]
    texts = [value for value in arguments if isinstance(value, str)]
    places = [*([numbers] if numbers else []), *lists, *_places(named)]
    return Action(canonical_action(kind), tuple(places), (*texts, *_values(named, _TEXTS)))


def _places(value: Mapping[str, Any]) -> tuple[Any, ...]:
    apart = [value["x"], value.get("y")] if value.get("x") is not None else None
    return _values({**value, "x": apart}, (*_POINTS, "x"))


def _values(value: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(value[key] for key in keys if value.get(key) is not None)


def _at_most_one(values: tuple[Any, ...], what: str) -> Any:
    if len(values) > 1:
        raise InvalidAnswer(f"the action has {len(values)} {what}, not one: {values!r:.60}")
    return values[0] if values else None


def parse_literal(text: str) -> Any:
    """Return the value of a text that is one literal.

    Raises:
        InvalidAnswer: the text is not a literal, continues after it, or has a key twice.
    """
    tokens = _Tokens(text)
    value = _parse_value(tokens, 0)
    tokens.expect_end()
    return value


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name, the positional and the named arguments of a text that is one call.

    Raises:
        InvalidAnswer: the text is not a call of one function with literals, or has a named argument twice.
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
    """A stream of a text's tokens with one token of lookahead."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read")
        self.text, self.at = text.rstrip(), 0
        self.kind, self.written = "", ""
        self._step()

    def have(self, sign: str) -> bool:
        """Return whether the next token is this sign."""
        return (self.kind, self.written) == ("sign", sign)

    def take(self, kind: str, written: str | None = None) -> str:
        """Return the next token, which must be of this kind, and advance."""
        if self.kind != kind or written not in (None, self.written):
            expected = repr(written) if written else f"a {kind}"
            raise InvalidAnswer(f"expected {expected}, not {self.written or 'the end'!r:.40}, in {self.text[:60]!r}")
        taken = self.written
        self._step()
        return taken

    def expect_end(self) -> None:
        """Raise InvalidAnswer unless all tokens are consumed."""
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
    raise InvalidAnswer(f"{tokens.written or 'the end'!r:.40} is not a value in {tokens.text[:60]!r}")


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
        raise InvalidAnswer(f"{key!r:.40} occurs twice")
    mapping[key] = value


def _parse_float(written: str) -> int | float:
    value = float(written)
    if not math.isfinite(value):
        raise InvalidAnswer(f"{written[:40]} is not a finite number")
    return value if "." in written else int(written)


def _unescaped(escape: re.Match[str]) -> str:
    """Return the escaped character; an unknown escape keeps its backslash, as in Python: C:\\dir."""
    return _ESCAPED.get(escape[1], escape[0])
