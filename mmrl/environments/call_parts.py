"""Parts of a turn that may be calls: between marks, as JSON at a place, or as tags. Nothing here raises."""

from __future__ import annotations

import re
from typing import Any

from mmrl.environments.tool_calls import MAX_CHARACTERS, BadCall, ToolCall, checked_call, too_long
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.json_text import STRICT_JSON

_FUNCTION = re.compile(r"\s*<function=([^<>\s]{1,100})>")


def without_thoughts(text: str) -> str:
    """Return what follows the last </think>, up to a <think> that is never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def between(text: str, opening: str, closing: str, most: int) -> list[tuple[str, bool]]:
    """Return the first `most` parts between two marks; the last is the rest, with False, if it is not closed."""
    found: list[tuple[str, bool]] = []
    at = 0
    while len(found) < most and (start := text.find(opening, at)) >= 0:
        start += len(opening)
        end = text.find(closing, start)
        if end < 0:
            return [*found, (text[start:], False)]
        found.append((text[start:end], True))
        at = end + len(closing)
    return found


def xml_call(text: str) -> ToolCall | BadCall:
    """Read `<function=name><parameter=key>value</parameter></function>`; values stay texts."""
    if len(text) > MAX_CHARACTERS:
        return too_long(text)
    head = _FUNCTION.match(text)
    if head is None:
        return BadCall("malformed", "a call begins with <function=name>")
    body, closed, rest = text[head.end() :].partition("</function>")
    if not closed or rest.strip():
        return BadCall("malformed", "a call ends with </function>")
    arguments: dict[str, str] = {}
    while body := body.strip():
        if not body.startswith("<parameter=") or "</parameter>" not in body:
            return BadCall("malformed", "each argument is <parameter=name>value</parameter>")
        key, closed, rest = body.removeprefix("<parameter=").partition(">")
        value, _, body = rest.partition("</parameter>")
        if not closed or key in arguments:
            return BadCall("malformed", f"the argument {key!r:.50} is malformed or occurs twice")
        arguments[key] = value.removeprefix("\n").removesuffix("\n")
    return checked_call(head[1], arguments, textual=True)


def value_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at a place and its end, or a `BadCall`."""
    try:
        return STRICT_JSON.raw_decode(text, start)
    except (InvalidAnswer, ValueError) as err:
        return BadCall("malformed", f"the call is not JSON: {err}"[:200]), len(text)
    except RecursionError:
        return BadCall("malformed", "the call is nested too deep"), len(text)


def unclosed(mark: str) -> BadCall:
    """Return the problem of a mark that is never closed."""
    return BadCall("malformed", f"a {mark} is never closed")
