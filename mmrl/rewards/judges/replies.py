"""Validation and parsing of a judge's replies: the chat completion, then its text.

Nothing in a reply is trusted. A reply that cannot be parsed is a failure of the judge (`ScoringFailed`), never a 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mmrl.rewards.core.reward_errors import ScoringFailed

MaskSecrets: TypeAlias = Callable[[str], str]

_MIN_LOG_PROB = -1e6
"""Lower bound of log-probabilities; servers write values from -9999 to -Infinity for impossible tokens."""
MIN_PROBABILITY = 0.01
"""The least probability of the two words together; below it the judge would say something else, and their ratio is
noise."""

_WHITESPACE = " \t\r\n▁Ġ"  # as tokenizers write them
_PUNCTUATION = "*_`\"'\u201c\u201d\u2018\u2019.,:;!()[]"
_NUMBER = re.compile(r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)(?:\s{0,2}(?:/|out of)\s{0,2}([0-9]{1,9}(?:\.[0-9]{1,9})?))?")
_LABEL = re.compile(r"(?:final )?(?:answer|ranking|order|rating|score|verdict)\s{0,2}[:=]\s{0,2}", re.IGNORECASE)


@dataclass(frozen=True)
class Reply:
    """The reply of a judge."""

    text: str
    truncated: bool = False
    """True if the server stopped the reply at the token limit."""
    first_token: Mapping[str, float] | None = None
    """{token: log-probability} of the candidates for the first token; None if the server does not give them."""


def read_completion(body: bytes, mask: MaskSecrets = str) -> Reply:
    """Return the first choice of a chat completion, its texts passed through `mask`.

    Raises:
        ScoringFailed: "truncated" (JSON that ends early), "not_json", "wrong_type" (JSON of another shape), "refused"
            or "content_filter" (the judge would not answer).
    """
    document = _parse(body, mask)
    choice = _field(document, "choices", list)
    if not choice:
        raise _malformed("choices is empty")
    message = _field(choice[0], "message", dict)
    if isinstance(message.get("refusal"), str):
        raise ScoringFailed(f"the judge refused: {mask(message['refusal'])!r:.200}", "refused")
    stopped = choice[0].get("finish_reason")
    if stopped == "content_filter":
        raise ScoringFailed("the server's content filter stopped the judge", "content_filter")
    first = _first_token(choice[0].get("logprobs"), mask)
    text = message.get("content")
    if text is None and first is not None:
        text = ""  # a server that parses reasoning may leave it empty; the log-probabilities suffice
    if not isinstance(text, str):
        raise _malformed(f"message.content is {_kind(text)}, not a text")
    return Reply(mask(text), stopped == "length", first)


def yes_probability(first_token: Mapping[str, float], yes: str, no: str) -> float:
    """Return P(yes) / (P(yes) + P(no)), each summed over its spellings ("Yes", " yes", "YES."), in [0, 1].

    Raises:
        ScoringFailed: "unparseable": both words together are below `MIN_PROBABILITY`.
    """
    mass = {yes: 0.0, no: 0.0}
    for token, logprob in first_token.items():
        word = _normalized(token)
        if word in mass:
            mass[word] += math.exp(logprob)
    total = mass[yes] + mass[no]
    if total < MIN_PROBABILITY:
        likely = max(first_token, key=first_token.__getitem__, default="")
        raise ScoringFailed(f"the judge would say {likely!r:.40}, neither {yes!r} nor {no!r}", "unparseable")
    return mass[yes] / total


def parse_choice(text: str, options: Sequence[str]) -> str:
    """Return the option that is the whole reply, or that its last line gives after "Answer:".

    "Yes.", "**yes**" and "... Answer: yes" are options; "Yes, but" and "yes or no" are not.
    """
    word = _normalized(_final_text(text))
    if word not in options:
        raise _unparseable(text, f"one of {', '.join(options)}")
    return word


def parse_number(text: str, low: float, high: float) -> float:
    """Return a number from `low` to `high`, such as "7", "7.5/10" or "Score: 7 out of 10"."""
    found = _NUMBER.fullmatch(_final_text(text).strip(_WHITESPACE + "*_`\"'.,:;!()[]"))
    if not found or (found[2] and float(found[2]) != high) or not low <= float(found[1]) <= high:
        raise _unparseable(text, f"a number from {low:g} to {high:g}")
    return float(found[1])


def parse_order(text: str, size: int) -> list[int]:
    """Return the judge's order of `size` answers, best first, counted from 0: "3 > 1 > 2" gives [2, 0, 1].

    Raises:
        ScoringFailed: "unparseable": not each number from 1 to `size`, once.
    """
    parts = [part for part in re.split(r"[\s>,;]+", _final_text(text).strip(_WHITESPACE + _PUNCTUATION)) if part]
    places = [int(part) - 1 for part in parts if part.isascii() and part.isdigit() and len(part) < 10]
    if len(places) != len(parts) or sorted(places) != list(range(size)):
        raise _unparseable(text, f"each number from 1 to {size}, once")
    return places


def _parse(body: bytes, mask: MaskSecrets) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise ScoringFailed("the server's answer is not UTF-8 text", "not_json") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as err:
        # JSON that stops before its end was cut off on the way: another attempt may succeed
        if not text.strip() or (text.lstrip()[0] in "{[" and _ends_early(err, text)):
            raise ScoringFailed(f"the server's answer ends after {len(body)} bytes", "truncated", True) from None
        raise ScoringFailed(f"the server's answer is not JSON: {mask(text.strip())[:80]!r}", "not_json") from None


def _ends_early(err: ValueError, text: str) -> bool:
    if not isinstance(err, json.JSONDecodeError):
        return False  # a number with thousands of digits
    return (
        err.msg.startswith("Unterminated string") or err.pos >= len(text.rstrip()) - 1 or text.strip()[-1] not in "}]"
    )


def _first_token(logprobs: Any, mask: MaskSecrets) -> Mapping[str, float] | None:
    """Return {token: log-probability}; None also for a single token, from which no ratio can be taken."""
    if logprobs is None:
        return None
    tokens = logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
    if tokens is None or tokens == []:
        return None
    if not isinstance(tokens, list) or not isinstance(tokens[0], Mapping):
        raise _malformed(f"logprobs.content is {_kind(tokens)}, not a list of tokens")
    others = tokens[0].get("top_logprobs")
    if others is None or others == []:
        return None
    if not isinstance(others, list):
        raise _malformed(f"top_logprobs is {_kind(others)}, not a list")
    found: dict[str, float] = {}
    for entry in others:
        token = entry.get("token") if isinstance(entry, Mapping) else None
        value = entry.get("logprob") if isinstance(entry, Mapping) else None
        if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise _malformed(f"top_logprobs holds {mask(repr(entry)):.80}, not a token and its log-probability")
        token = mask(token)
        if not value <= 1e-3:  # NaN too
            raise _malformed(f"the log-probability of {token!r:.40} is {value!r:.40}")
        found[token] = max(found.get(token, -math.inf), float(max(value, _MIN_LOG_PROB)))
    return found if len(found) > 1 else None


def _field(holder: Any, key: str, kind: type) -> Any:
    if not isinstance(holder, Mapping):
        raise _malformed(f"{_kind(holder)} instead of an object with {key!r}")
    value = holder.get(key)
    if not isinstance(value, kind):
        raise _malformed(f"{key} is {_kind(value)}, not {'a list' if kind is list else 'an object'}")
    return value


def _kind(value: Any) -> str:
    return "null or missing" if value is None else f"a {type(value).__name__}"


def _malformed(problem: str) -> ScoringFailed:
    return ScoringFailed(f"the server's answer is not a chat completion: {problem}", "wrong_type")


def _final_text(text: str) -> str:
    """Return the text after the judge's thinking: all of it, or the rest of its last line after a label."""
    _, closed, reply = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise ScoringFailed("the judge's thinking never ends", "unparseable")
    reply = reply.strip()
    last = reply.rpartition("\n")[2].strip(_WHITESPACE + _PUNCTUATION)
    if labelled := _LABEL.match(last):
        return last[labelled.end() :]
    return reply


def _normalized(word: str) -> str:
    return word.strip(_WHITESPACE + _PUNCTUATION).casefold()


def _unparseable(text: str, expected: str) -> ScoringFailed:
    return ScoringFailed(f"the judge said {text.strip()[:120]!r}, not {expected}", "unparseable")
