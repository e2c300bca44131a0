"""Requests to an OpenAI-compatible server, and every way in which they fail, by name.

    http_503, http_429, ...   the server refused; 408, 409, 425, 429 and all from 500 may pass when tried again
    connection                nobody listens, or the line broke before an answer began; may pass
    timeout                   nothing came for `timeout_s`, or no whole answer by then; may pass
    truncated                 the answer broke off; may pass. Or the judge wrote past `max_tokens`, which will not
    too_large                 the answer is longer than any that a judge has reason to give
    not_json, wrong_type      the answer is something else than a chat completion
    refused, content_filter   the judge, or its server, would not answer

The client never tries again by itself: a `RewardSuite` does, and counts. The key stands in an environment variable,
and in no setting, message or fingerprint: all that a server says is masked before it is shortened or shown.
"""

from __future__ import annotations

import html
import importlib.util
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.judges.replies import Reply, read_completion

LARGEST_ANSWER = 4 * 2**20  # bytes; a reply with 20 log-probabilities is some kilobytes
LARGEST_REFUSAL = 4096  # bytes of a refusal that are read, for its reason
LONGEST_REFUSAL_S = 5.0
TOP = 20  # log-probabilities: the most that OpenAI and, unless told otherwise, vLLM give
_MAY_PASS = (408, 409, 425, 429)
LONGEST_REASON = 300  # characters of a message
SHORTEST_KEY = 4  # characters; a shorter one is a placeholder, and masking it would tear numbers and words apart
_NO_KEY = "none"  # the client insists on one, and would take OPENAI_API_KEY, which is not for every server; never sent
_SENT = ("host", "connection", "accept", "user-agent", "authorization", "content-", "transfer-encoding", "x-stainless-")
T = TypeVar("T")


class Endpoint:
    """A model on a server. Safe to use from many threads; connects when first asked."""

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key_env: str,
        timeout_s: float,
        temperature: float,
        seed: int | None,
        extra_body: Mapping[str, Any] | None,
        at_once: int,
    ) -> None:
        """
        Raises:
            RewardError: a setting that cannot work.
        """
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise RewardError(f"base_url is {base_url!r}; it must be a URL such as http://127.0.0.1:8000/v1")
        if address.username or address.password or address.query:
            raise RewardError("base_url holds a user, a password or a query: put the key in the variable api_key_env")
        if importlib.util.find_spec("openai") is None:
            raise RewardError("a judge needs the openai client: pip install 'mmrl-suite[judge]'")
        if not model:
            raise RewardError("model is empty: name the model as the server does (GET /v1/models lists them)")
        _key_in(api_key_env)
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise RewardError(f"timeout_s is {timeout_s}; it must be above 0")
        if not (math.isfinite(temperature) and temperature >= 0):
            raise RewardError(f"temperature is {temperature}; it cannot be negative")
        self._model, self._url, self._key_name = model, base_url, api_key_env
        self._timeout_s, self._temperature, self._seed = timeout_s, temperature, seed
        self._extra, self._at_once = dict(extra_body or {}), at_once
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._known: Any = None
        self._spellings: tuple[str, ...] = ()

    def ask(self, messages: Sequence[Mapping[str, Any]], max_tokens: int, logprobs: bool = False) -> Reply:
        """What the judge says.

        Raises:
            ScoringFailed: one of the kinds above.
        """
        wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": TOP} if logprobs else {}
        if self._seed is not None:
            wanted["seed"] = self._seed
        client = self._client()
        end = time.monotonic() + self._timeout_s
        try:
            with client.chat.completions.with_streaming_response.create(
                model=self._model,
                messages=list(messages),
                max_tokens=max_tokens,
                temperature=self._temperature,
                timeout=self._timeout_s,  # of each read; `_read` holds the whole body to it, and nothing the headers
                extra_body=self._extra or None,
                **wanted,
            ) as response:
                body = _read(response.iter_bytes(), end, self._timeout_s)
        except Exception as err:  # of the client's many; named below or passed on as it is
            raise self._named(err) from None
        return read_completion(body, self._shown)

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """What each call gives, or raises, several at once. A call must not call `together` itself."""
        if len(calls) < 2:
            return [_attempt(call) for call in calls]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="judge")
            pool = self._pool
        return list(pool.map(_attempt, calls))

    def _client(self) -> Any:
        with self._lock:
            if self._known is None:
                from openai import DefaultHttpxClient, OpenAI

                key = _key_in(self._key_name)
                self._spellings = _spellings(key)
                self._known = OpenAI(
                    api_key=key or _NO_KEY,
                    base_url=self._url,
                    max_retries=0,
                    default_headers={"Authorization": f"Bearer {key}"} if key else None,
                    http_client=DefaultHttpxClient(
                        event_hooks={"request": [partial(_strip, key)], "response": [_refuse]}
                    ),
                )
                weakref.finalize(self, self._known.close)
            return self._known

    def _named(self, why: Exception) -> ScoringFailed:
        """The failure, by name, without the key, and no longer than can be read."""
        found = next((each for each in (why, why.__cause__) if isinstance(each, ScoringFailed)), None)
        if found is None:
            found = _failure(why)
        shown = self._shown(str(found))[:LONGEST_REASON]
        return ScoringFailed(shown, found.kind, found.transient, found.failure.retry_after_s)

    def _shown(self, text: str) -> str:
        """Without the key, which servers repeat when they refuse it; also where the text ends in the middle of it."""
        for key in self._spellings:
            text = text.replace(key, "***")
        for key in self._spellings:
            begun = next((n for n in range(len(key) - 1, SHORTEST_KEY - 1, -1) if text.endswith(key[:n])), 0)
            text = text[: len(text) - begun] + "***" if begun else text
        return text

    def __getstate__(self) -> dict[str, Any]:
        unsaved = ("_lock", "_pool", "_known", "_spellings")
        return {name: value for name, value in vars(self).items() if name not in unsaved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _pool=None, _known=None, _spellings=())


def _key_in(variable: str) -> str:
    """The key; "" where no variable is named.

    Raises:
        RewardError: it cannot stand in a header. The message holds no part of it.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise RewardError(f"api_key_env: the environment variable {variable} is not set")
    if not all("!" <= letter <= "~" for letter in key):
        raise RewardError(f"api_key_env: {variable} holds a blank, a control character or one that is not ASCII")
    return key


def _spellings(key: str) -> tuple[str, ...]:
    """The key as it is, and as it stands in JSON, HTML and a URL; the longest first."""
    if len(key) < SHORTEST_KEY:
        return ()
    quoted = json.dumps(key)[1:-1]
    found = {key, quoted, quoted.replace("/", "\\/"), html.escape(key), quote(key, safe="")}
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def _strip(key: str, request: Any) -> None:
    """Called by the client for each request: out goes what it adds of the variables for OpenAI's own service."""
    for name in [each for each in request.headers if not each.lower().startswith(_SENT)]:
        del request.headers[name]
    if not key or request.headers.get("Authorization") != f"Bearer {key}":
        request.headers.pop("Authorization", None)


def _refuse(response: Any) -> None:
    """Called by the client for each answer, before its body is read: of a refusal, only the beginning ever is."""
    if response.status_code < 400:
        return
    reason, end = b"", time.monotonic() + LONGEST_REFUSAL_S
    try:
        for chunk in response.iter_bytes():
            reason += chunk
            if len(reason) >= LARGEST_REFUSAL or time.monotonic() > end:
                break
    except Exception as err:  # a refusal without a reason is one all the same
        reason = reason or type(err).__name__.encode()
    status = response.status_code
    told = " ".join(reason[:LARGEST_REFUSAL].decode("utf-8", "replace").split())
    raise ScoringFailed(
        f"HTTP {status} from the judge: {told or 'no reason given'}",
        f"http_{status}",
        transient=status in _MAY_PASS or status >= 500,
        retry_after_s=_seconds(response.headers.get("retry-after")),
    )


def _seconds(retry_after: str | None) -> float | None:
    """The header's number of seconds; its other form, a date, is left to the suite's own pauses."""
    text = (retry_after or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _read(chunks: Any, end: float, timeout_s: float) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise ScoringFailed(f"the server's answer has more than {LARGEST_ANSWER} bytes", "too_large")
        if time.monotonic() > end:
            raise ScoringFailed(f"the server's answer was not whole after {timeout_s:g} s", "timeout", True)
    return bytes(body)


def _failure(why: Exception) -> ScoringFailed:
    """What went wrong on the line, told by the names of classes: openai 2 is built on httpx and openai 3 on httpx2."""
    chain = [each for each in (why, why.__cause__) if each is not None]
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    told = f"{type(chain[-1]).__name__}: {str(chain[-1]) or why}"
    if names & {"APITimeoutError", "TimeoutException"}:
        return ScoringFailed(f"the judge did not answer in time ({told})", "timeout", True)
    if names & {"APIConnectionError"}:
        return ScoringFailed(f"the judge cannot be reached ({told})", "connection", True)
    if names & {"TransportError", "DecodingError", "StreamError"}:
        return ScoringFailed(f"the judge's answer broke off ({told})", "truncated", True)
    return ScoringFailed(told)


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as err:  # handed on in the place of a result
        return err
