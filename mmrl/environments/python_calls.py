"""Calls written as Python, such as `crop(box=[1, 2, 3, 4])`, read from the syntax tree: nothing is compiled or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from mmrl.environments.tool_calls import BadCall, ToolCall, checked_call

MAX_CODE = 4_000
"""The largest number of characters of one block: Python's own parser recurses."""
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99} ?= ?(?!=)")


def python_calls(code: str) -> list[ToolCall | BadCall]:
    """Return the calls of a block: one call, or one on each line; `print(call)` and `x = call` are the call itself."""
    if len(code) > MAX_CODE:
        return [BadCall("too_long", f"the block has {len(code)} characters; at most {MAX_CODE} are read")]
    code = code.strip()
    whole = _call_in(code)
    if isinstance(whole, ToolCall) or "\n" not in code:
        return [whole]
    return [_call_in(line.strip()) for line in code.splitlines() if line.strip()]


def listed_calls(text: str) -> list[ToolCall | BadCall]:
    """Return the calls of a text that is a Python list of calls, such as `[crop(image=0)]`; of other texts none."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith(")]")) or len(text) > MAX_CODE:
        return []
    try:
        value = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        return [BadCall("malformed", f"the list of calls is not Python: {type(err).__name__}: {err}"[:200])]
    return [_call_of(each) for each in value.elts] if isinstance(value, ast.List) else []


def python_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as Python."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _call_in(code: str) -> ToolCall | BadCall:
    code = code[assigned.end() :] if (assigned := _ASSIGNED.match(code)) else code
    try:
        # As an expression: after a syntax error in statements, Python opens a file that has the source's name.
        call = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as err:
        return BadCall("malformed", f"the call is not Python: {type(err).__name__}: {err}"[:200])
    return _call_of(call)


def _call_of(call: ast.expr) -> ToolCall | BadCall:
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print" and call.args:
        call = call.args[0]
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return BadCall("malformed", "each line is one call, such as name(key=value)")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return BadCall("malformed", f"name each argument of {call.func.id}, as in {call.func.id}(key=value)")
    names = [str(keyword.arg) for keyword in call.keywords]
    if len(set(names)) != len(names):
        return BadCall("malformed", f"an argument of {call.func.id} occurs twice")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return BadCall("malformed", f"the argument {keyword.arg} of {call.func.id} is no literal")
        arguments[str(keyword.arg)] = _plain(value)
    return checked_call(call.func.id, arguments)


def _plain(value: Any) -> Any:
    """Return a literal with tuples and sets as lists. The parser bounds the depth."""
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value
