"""Requests to an OpenAI-compatible server, and every way in which they fail, by name.

    http_503, http_429, ...   the server refused; 408, 409, 425, 429 and all from 500 may pass when tried again
    connection                nobody listens, or the line broke before an answer began; may pass
    timeout                   no whole answer in `timeout_s`; may pass
    truncated                 the answer broke off; may pass. Or the judge wrote past `max_tokens`, which will not
    too_large                 the answer is longer than any that a judge has reason to give
    not_json, wrong_type      the answer is something else than a chat completion
    refused, content_filter   the judge, or its server, would not answer

The client never tries again by itself: a `RewardSuite` does, and counts. The key stands in an environment variable,
and in no setting, message or fingerprint.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mmrl.rewards.base import RewardError, ScoringFailed
from mmrl.rewards.judges.replies import Reply, read_completion

LARGEST_ANSWER = 4 * 2**20  # bytes; a reply with 20 log-probabilities is some kilobytes
LARGEST_REFUSAL = 4096  # bytes of a refusal that are read, for its reason
LONGEST_REFUSAL_S = 5.0
TOP = 20  # log-probabilities: the most that OpenAI and, unless told otherwise, vLLM give
_MAY_PASS = (408, 409, 425, 429)
_NO_KEY = "none"  # the client insists on one, and would take OPENAI_API_KEY, which is not for every server
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
        if api_key_env and not os.environ.get(api_key_env):
            raise RewardError(f"api_key_env: the environment variable {api_key_env} is not set")
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
                timeout=self._timeout_s,  # of each read; `_read` holds the whole answer to it
                extra_body=self._extra or None,
                **wanted,
            ) as response:
                body = _read(response.iter_bytes(), end, self._timeout_s)
        except Exception as why:  # of the client's many; named below or passed on as it is
            raise self._named(why) from None
        return read_completion(body)

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

                key = os.environ.get(self._key_name, "") if self._key_name else ""
                self._known = OpenAI(
                    api_key=key or _NO_KEY,
                    base_url=self._url,
                    max_retries=0,
                    http_client=DefaultHttpxClient(event_hooks={"response": [_refuse]}),
                )
                weakref.finalize(self, self._known.close)
            return self._known

    def _named(self, why: Exception) -> Exception:
        """The failure, by name and without the key."""
        found = next((each for each in (why, why.__cause__) if isinstance(each, ScoringFailed)), None)
        if found is None:
            found = _failure(why)
        if found is None:
            return why
        return ScoringFailed(self._shown(str(found)), found.kind, found.transient, found.failure.retry_after_s)

    def _shown(self, text: str) -> str:
        """Servers repeat the key that they refuse."""
        return text if self._known.api_key == _NO_KEY else text.replace(self._known.api_key, "***")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_pool", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _pool=None, _known=None)


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
    except Exception as why:  # a refusal without a reason is one all the same
        reason = reason or type(why).__name__.encode()
    status = response.status_code
    told = " ".join(reason[:LARGEST_REFUSAL].decode("utf-8", "replace").split())[:300]
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


def _failure(why: Exception) -> ScoringFailed | None:
    """What went wrong on the line, told by the names of classes: openai 2 is built on httpx and openai 3 on httpx2."""
    chain = [each for each in (why, why.__cause__) if each is not None]
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    told = f"{type(chain[-1]).__name__}: {str(chain[-1]) or why}"[:300]
    if names & {"APITimeoutError", "TimeoutException"}:
        return ScoringFailed(f"the judge did not answer in time ({told})", "timeout", True)
    if names & {"APIConnectionError"}:
        return ScoringFailed(f"the judge cannot be reached ({told})", "connection", True)
    if names & {"TransportError", "DecodingError", "StreamError"}:
        return ScoringFailed(f"the judge's answer broke off ({told})", "truncated", True)
    return None


def _attempt(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as why:  # handed on in the place of a result
        return why
