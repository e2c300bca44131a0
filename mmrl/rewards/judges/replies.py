"""What a server sent back, read and checked: nothing in it is taken on trust."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mmrl.rewards.core.reward_errors import ScoringFailed

Hide: TypeAlias = Callable[[str], str]

_NEVER = -1e6
"""As a log-probability; servers write anything from -9999 to -Infinity."""


@dataclass(frozen=True)
class Reply:
    """What a judge said."""

    text: str
    cut: bool = False
    """Whether the server stopped it at the limit of tokens."""
    first_token: Mapping[str, float] | None = None
    """{token: log-probability} of what could have come first; None where the server does not say."""


def read_completion(body: bytes, hide: Hide = str) -> Reply:
    """The first choice of a chat completion. `hide` takes out of a text what nobody is to see.

    Raises:
        ScoringFailed: "truncated" (JSON that ends early), "not_json", "wrong_type" (JSON of another shape), "refused"
            or "content_filter" (the judge would not answer).
    """
    document = _parse(body, hide)
    choice = _at(document, "choices", list)
    if not choice:
        raise _misshapen("choices is empty")
    message = _at(choice[0], "message", dict)
    if isinstance(message.get("refusal"), str):
        raise ScoringFailed(f"the judge refused: {hide(message['refusal'])!r:.200}", "refused")
    stopped = choice[0].get("finish_reason")
    if stopped == "content_filter":
        raise ScoringFailed("the server's content filter stopped the judge", "content_filter")
    first = _first_token(choice[0].get("logprobs"), hide)
    text = message.get("content")
    if text is None and first is not None:
        text = ""  # a server that parses reasoning keeps it apart; the log-probabilities are all that was asked for
    if not isinstance(text, str):
        raise _misshapen(f"message.content is {_kind(text)}, not a text")
    return Reply(hide(text), stopped == "length", first)


def _parse(body: bytes, hide: Hide) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise ScoringFailed("the server's answer is not UTF-8 text", "not_json") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise _misshapen("it is nested too deeply") from None
    except ValueError as err:
        # What begins as JSON and stops before its end was cut off on the way, and may come whole next time
        if not text.strip() or (text.lstrip()[0] in "{[" and _ends_early(err, text)):
            raise ScoringFailed(f"the server's answer ends after {len(body)} bytes", "truncated", True) from None
        raise ScoringFailed(f"the server's answer is not JSON: {hide(text.strip())[:80]!r}", "not_json") from None


def _ends_early(why: ValueError, text: str) -> bool:
    if not isinstance(why, json.JSONDecodeError):
        return False  # a number with thousands of digits
    return (
        why.msg.startswith("Unterminated string") or why.pos >= len(text.rstrip()) - 1 or text.strip()[-1] not in "}]"
    )


def _first_token(logprobs: Any, hide: Hide) -> Mapping[str, float] | None:
    """None also where the server names only the token that it chose: a share cannot be taken from one alone."""
    if logprobs is None:
        return None
    tokens = logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
    if tokens is None or tokens == []:
        return None
    if not isinstance(tokens, list) or not isinstance(tokens[0], Mapping):
        raise _misshapen(f"logprobs.content is {_kind(tokens)}, not a list of tokens")
    others = tokens[0].get("top_logprobs")
    if others is None or others == []:
        return None
    if not isinstance(others, list):
        raise _misshapen(f"top_logprobs is {_kind(others)}, not a list")
    found: dict[str, float] = {}
    for entry in others:
        token = entry.get("token") if isinstance(entry, Mapping) else None
        value = entry.get("logprob") if isinstance(entry, Mapping) else None
        if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise _misshapen(f"top_logprobs holds {hide(repr(entry)):.80}, not a token and its log-probability")
        token = hide(token)
        if not value <= 1e-3:  # NaN too
            raise _misshapen(f"the log-probability of {token!r:.40} is {value!r:.40}")
        found[token] = max(found.get(token, -math.inf), float(max(value, _NEVER)))
    return found if len(found) > 1 else None


def _at(holder: Any, key: str, kind: type) -> Any:
    if not isinstance(holder, Mapping):
        raise _misshapen(f"{_kind(holder)} stands where an object with {key!r} was due")
    value = holder.get(key)
    if not isinstance(value, kind):
        raise _misshapen(f"{key} is {_kind(value)}, not {'a list' if kind is list else 'an object'}")
    return value


def _kind(value: Any) -> str:
    return "null or missing" if value is None else f"a {type(value).__name__}"


def _misshapen(problem: str) -> ScoringFailed:
    return ScoringFailed(f"the server's answer is not a chat completion: {problem}", "wrong_type")
