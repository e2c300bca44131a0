"""`ToolCall` and `BadCall`: the calls of one turn, read from untrusted text without ever raising.

JSON is read strictly: no repeated keys, no NaN, no numbers of thousands of digits, at most `MAX_DEPTH` lists and
objects inside each other, and at most `MAX_CHARACTERS` in one call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.environments.tool import Tool
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.json_text import STRICT_JSON

MAX_CHARACTERS = 20_000
"""The largest number of characters of one call."""
MAX_DEPTH = 16
"""The largest number of lists and objects inside each other."""
MAX_NAME = 100
"""The largest number of characters of a tool's name."""
ARGUMENT_KEYS = ("arguments", "parameters")
"""The keys under which model families write the arguments of a call."""


@dataclass(frozen=True)
class ToolCall:
    """A call as a policy wrote it: the tool may not exist, and the arguments may not fit it."""

    name: str
    arguments: Mapping[str, Any]
    textual: bool = False
    """The values are texts whose types follow from the schema of the tool, as in calls written in XML."""


@dataclass(frozen=True)
class BadCall:
    """A part of a turn that begins like a call and is none."""

    kind: str
    """`malformed` or `too_long`."""
    reason: str


@dataclass(frozen=True)
class ParsedTurn:
    """The calls of a turn in their order, at most a number of them, and how many more there were."""

    calls: tuple[ToolCall | BadCall, ...] = ()
    dropped: int = 0


def json_call(text: str) -> ToolCall | BadCall:
    """Read a call written as a JSON object with `name` and `arguments` or `parameters`, which may be absent."""
    if len(text) > MAX_CHARACTERS:
        return too_long(text)
    try:
        value = STRICT_JSON.decode(text.strip())
    except (InvalidAnswer, ValueError) as err:  # ValueError: bad syntax, or a number of more digits than Python reads
        return BadCall("malformed", f"the call is not JSON: {err}"[:200])
    except RecursionError:
        return BadCall("malformed", "the call is nested too deep")
    return call_of(value)


def call_of(value: Any) -> ToolCall | BadCall:
    """Return the call in a JSON value."""
    if not isinstance(value, dict):
        return BadCall("malformed", 'a call is an object with the keys "name" and "arguments"')
    keys = [key for key in ARGUMENT_KEYS if key in value]
    if other := sorted(value.keys() - {"name", *ARGUMENT_KEYS}):
        return BadCall("malformed", f"a call has no key {other[0]!r:.50}: its keys are name and {keys or 'arguments'}")
    if len(keys) > 1:
        return BadCall("malformed", "a call has both arguments and parameters")
    return checked_call(value.get("name"), value[keys[0]] if keys else {})


def checked_call(name: Any, arguments: Any, textual: bool = False) -> ToolCall | BadCall:
    """Return a call whose name is a text and whose arguments are an object that is not nested too deep."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        return BadCall("malformed", f'"name" must be the name of a tool, not {name!r:.50}')
    if not isinstance(arguments, dict):
        return BadCall("malformed", f"the arguments of {name!r} must be an object, not {arguments!r:.50}")
    if depth_exceeds(arguments, MAX_DEPTH):
        return BadCall("malformed", f"the arguments of {name!r} are nested more than {MAX_DEPTH} deep")
    return ToolCall(name, arguments, textual)


def depth_exceeds(value: Any, limit: int) -> bool:
    """Return whether lists and objects stand more than `limit` deep inside each other; does not recurse."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def too_long(text: str) -> BadCall:
    """Return the problem of a call with too many characters."""
    return BadCall("too_long", f"the call has {len(text)} characters; at most {MAX_CHARACTERS} are read")


def typed_arguments(call: ToolCall, tool: Tool) -> Mapping[str, Any]:
    """Return the arguments of a call; the texts of a textual one are read as JSON where the schema wants no text."""
    if not call.textual:
        return call.arguments
    properties = tool.parameters.get("properties", {})
    return {
        name: text if properties.get(name, {}).get("type") == "string" else _value_of(text)
        for name, text in call.arguments.items()
    }


def _value_of(text: Any) -> Any:
    try:
        value = STRICT_JSON.decode(text.strip())
    except (InvalidAnswer, ValueError, RecursionError):
        return text
    return text if depth_exceeds(value, MAX_DEPTH) else value


def call_text(name: str, arguments: Mapping[str, Any], key: str = "arguments") -> str:
    """Return a call as a JSON object."""
    return json.dumps({"name": name, key: dict(arguments)}, ensure_ascii=False)


def capped(calls: Sequence[ToolCall | BadCall], most: int) -> ParsedTurn:
    """Return the first `most` calls and the number of all others."""
    return ParsedTurn(tuple(calls[:most]), max(0, len(calls) - most))
