"""Parse one action on a screen from an answer.

    {"action": "click", "coordinate": [320, 240]}        {'action': 'click', 'point': [320, 240]}
    {"name": "computer_use", "arguments": {"action": "type", "text": "hello"}}
    click(320, 240)    click(x=320, y=240)    click(start_box='(320, 240)')    type(content='hello')    press_back()

The first line is the format of UI-R1 and GUI-R1, the second that of Qwen-VL's tools, with or without <tool_call>, the
third that of UI-TARS, which may follow "Action:" at the start of a line or after a "Thought:". The answer may be
fenced. Exactly one action is expected: a list of several is invalid, and so is text after the action.

Calls and literals are Python's, parsed by `ast`, of few kinds (`parse_call`, `parse_literal`): text in single or double
quotes, numbers, True, False, None (also in JSON's spelling), lists, tuples and mappings. Nothing is evaluated, the
depth is bounded, and the whole text must be consumed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
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

MAX_CHARACTERS = 10_000  # number of characters above which a text is not parsed
_MAX_DEPTH = 8

_TOKEN = re.compile(
    r"""(?P<text>(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")(?!\s*["']))"""
    r"""|(?P<number>-?[0-9]{1,15}(?:\.[0-9]{0,20})?(?![\w.]))"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]{0,63}(?!["']))"""
    r"""|[\[\](){},:=\s]"""
)
_ESCAPE = re.compile(r"\\([^ntr\\'\"])|\\.")
_NAMED = {"true": "True", "false": "False", "null": "None"}

_LEAD = re.compile(r"\A\s*Thought:.*?Action:|^[ \t]*Action:", re.DOTALL | re.MULTILINE)
_KINDS = ("action", "action_type")
_POINTS = ("coordinate", "point", "position", "start_box", "start_point")
_TEXTS = ("text", "input_text", "content", "value", "direction", "key", "keys", "app_name")


@dataclass(frozen=True)
class Action:
    """An action, with its places and texts as they are written in the answer."""

    name: str
    """As the answer calls it."""
    places: tuple[Any, ...] = ()
    texts: tuple[Any, ...] = ()

    @property
    def kind(self) -> str:
        """The canonical name of the action."""
        return canonical_action(self.name)

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
    return Action(kinds[0], _places(value), _values(value, _TEXTS))


def _of_call(answer: str) -> Action:
    kind, arguments, named = parse_call(answer)
    numbers = [value for value in arguments if isinstance(value, int | float)]
    lists = [value for value in arguments if isinstance(value, list)]
    texts = [value for value in arguments if isinstance(value, str)]
    places = [*([numbers] if numbers else []), *lists, *_places(named)]
    return Action(kind, tuple(places), (*texts, *_values(named, _TEXTS)))


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
    return _value_of(_parse_expression(text))


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name, the positional and the named arguments of a text that is one call.

    Raises:
        InvalidAnswer: the text is not a call of one function with literals, or has a named argument twice.
    """
    call = _parse_expression(text)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise InvalidAnswer(f"{text[:60]!r} is not one action")
    named = [(str(keyword.arg), _value_of(keyword.value)) for keyword in call.keywords]
    return call.func.id, [_value_of(argument) for argument in call.args], _mapping_of(named)


def _parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of a text that has only the tokens of literals and calls."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    source, end = "", 0
    while token := _TOKEN.match(text, end):
        source, end = source + _as_python(token), token.end()
    try:
        if end < len(text):
            raise SyntaxError(f"{text[end : end + 20]!r} is no part of an action")
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        raise InvalidAnswer(f"{text[:60]!r} cannot be read: {err}") from None


def _as_python(token: re.Match[str]) -> str:
    """Return a token as Python writes it; an unknown escape keeps its backslash, as Python's does: C:\\dir."""
    if token["number"]:
        return re.sub(r"^(-?)0+(?=[0-9])", r"\1", token[0])
    if token["name"]:
        return _NAMED.get(token[0], token[0])
    if token["text"]:
        return _ESCAPE.sub(lambda escape: "/" if escape[1] == "/" else "\\" * bool(escape[1]) + escape[0], token[0])
    return token[0]


def _value_of(node: ast.expr, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"the answer stands more than {_MAX_DEPTH} brackets deep")
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value_of(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip((key and _value_of(key, depth) for key in keys), values, strict=True)
            return _mapping_of([(key, _value_of(value, depth + 1)) for key, value in pairs])
    raise InvalidAnswer(f"{ast.unparse(node)!r:.60} is not a value")


def _mapping_of(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    made = {key: value for key, value in pairs if isinstance(key, str)}
    if len(made) < len(pairs):
        raise InvalidAnswer(f"a key is no text or occurs twice: {[key for key, _ in pairs]!r:.60}")
    return made
