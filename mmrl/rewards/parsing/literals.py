"""A small grammar for what models write in place of JSON: Python literals and one call of a function.

    {'action': 'click', 'point': [320, 240]}
    click(start_box='(320, 240)')        click(320, 240)        press_back()

Read are text in single or double quotes, numbers, True, False, None (also in JSON's spelling), lists, tuples and
mappings. Nothing is evaluated, the depth is bounded, and the whole text must be consumed.
"""

from __future__ import annotations

import math
import re
from typing import Any

from mmrl.rewards.core.reward_errors import InvalidAnswer

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
    value = _value(tokens, 0)
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
            _put(named, key, _value(tokens, 0))
        elif named:
            raise InvalidAnswer(f"an argument without a name follows a named one in {text[:60]!r}")
        else:
            arguments.append(_value(tokens, 0))
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


def _value(tokens: _Tokens, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise InvalidAnswer(f"the answer stands more than {_MAX_DEPTH} brackets deep")
    if tokens.kind == "text":
        return _ESCAPE.sub(_unescaped, tokens.take("text")[1:-1])
    if tokens.kind == "number":
        return _number(tokens.take("number"))
    if tokens.kind == "name" and tokens.written in _NAMED:
        return _NAMED[tokens.take("name")]
    if tokens.have("{"):
        return _mapping(tokens, depth)
    for opening, closing in ("[]", "()"):
        if tokens.have(opening):
            return _items(tokens, depth, opening, closing)
    raise InvalidAnswer(f"{tokens.written or 'the end'!r:.40} is no value in {tokens.text[:60]!r}")


def _items(tokens: _Tokens, depth: int, opening: str, closing: str) -> list[Any]:
    tokens.take("sign", opening)
    items = []
    while not tokens.have(closing):
        items.append(_value(tokens, depth + 1))
        if not tokens.have(closing):
            tokens.take("sign", ",")
    tokens.take("sign", closing)
    return items


def _mapping(tokens: _Tokens, depth: int) -> dict[str, Any]:
    tokens.take("sign", "{")
    made: dict[str, Any] = {}
    while not tokens.have("}"):
        key = _ESCAPE.sub(_unescaped, tokens.take("text")[1:-1])
        tokens.take("sign", ":")
        _put(made, key, _value(tokens, depth + 1))
        if not tokens.have("}"):
            tokens.take("sign", ",")
    tokens.take("sign", "}")
    return made


def _put(mapping: dict[str, Any], key: str, value: Any) -> None:
    if key in mapping:
        raise InvalidAnswer(f"{key!r:.40} is given twice")
    mapping[key] = value


def _number(written: str) -> int | float:
    value = float(written)
    if not math.isfinite(value):
        raise InvalidAnswer(f"{written[:40]} is no finite number")
    return value if "." in written else int(written)


def _unescaped(escape: re.Match[str]) -> str:
    """What is escaped without need keeps its backslash, as in Python: C:\\dir."""
    return _ESCAPED.get(escape[1], escape[0])
