"""Requests to an OpenAI-compatible server, with a named kind of failure for each way in which they fail.

    http_503, http_429, ...   the server returned an error; 408, 409, 425, 429 and all from 500 are transient
    connection                no server listens, or the connection broke before a reply began; transient
    timeout                   no data for `timeout_s`, or no complete reply within it; transient
    truncated                 the reply broke off; transient. Or the judge exceeded `max_tokens`; not transient
    too_large                 the reply exceeds `MAX_BODY_BYTES`
    not_json, wrong_type      the reply is not a chat completion
    refused, content_filter   the judge, or its server, declined to answer

The client never retries: a `RewardSuite` does, and counts failures. The key is read from an environment variable and is
in no setting, message or fingerprint: all text of a server is masked before it is shortened or displayed.
"""

from __future__ import annotations

import importlib.util
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mmrl.api_key import ApiKey
from mmrl.http_retries import is_transient, retry_after_s
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed, attempt
from mmrl.rewards.judges.replies import Reply, read_completion

MAX_BODY_BYTES = 4 * 2**20  # a reply with 20 log-probabilities has some kilobytes
MAX_ERROR_BYTES = 4096  # read of an error response, for its reason
MAX_ERROR_S = 5.0
NUM_TOP_LOG_PROBS = 20  # the maximum of OpenAI, and the default maximum of vLLM
MAX_MESSAGE_LENGTH = 300  # characters of a message
_NO_KEY = "none"  # never sent; without a key the client would take OPENAI_API_KEY, which is not for every server
_KEPT_HEADERS = (
    "host",
    "connection",
    "accept",
    "user-agent",
    "authorization",
    "content-",
    "transfer-encoding",
    "x-stainless-",
)
T = TypeVar("T")


class Endpoint:
    """A model on a server. Thread-safe; connects at the first request."""

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key_env: str,
        timeout_s: float,
        temperature: float,
        seed: int | None,
        extra_body: Mapping[str, Any] | None,
        concurrency: int,
    ) -> None:
        """
        Raises:
            RewardError: a setting is invalid.
        """
        address = urlsplit(base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise RewardError(f"base_url is {base_url!r}; it must be a URL such as http://127.0.0.1:8000/v1")
        if address.username or address.password or address.query:
            raise RewardError("base_url has a user, a password or a query: put the key in the variable api_key_env")
        if importlib.util.find_spec("openai") is None:
            raise RewardError("a judge needs the openai client: pip install 'mmrl-suite[judge]'")
        if not model:
            raise RewardError("model is empty: name the model as the server does (GET /v1/models lists them)")
        _read_key(api_key_env)
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise RewardError(f"timeout_s is {timeout_s}; it must be above 0")
        if not (math.isfinite(temperature) and temperature >= 0):
            raise RewardError(f"temperature is {temperature}; it cannot be negative")
        self._model, self._url, self._key_name = model, base_url, api_key_env
        self._timeout_s, self._temperature, self._seed = timeout_s, temperature, seed
        self._extra, self._at_once = dict(extra_body or {}), concurrency
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._openai: Any = None
        self._key = ApiKey()

    def complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int, logprobs: bool = False) -> Reply:
        """Send a chat completion request and return the reply.

        Raises:
            ScoringFailed: of one of the kinds in the module's docstring.
        """
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": NUM_TOP_LOG_PROBS} if logprobs else {}
        if self._seed is not None:
            options["seed"] = self._seed
        client = self._client()
        end = time.monotonic() + self._timeout_s
        try:
            with client.chat.completions.with_streaming_response.create(
                model=self._model,
                messages=list(messages),
                max_tokens=max_tokens,
                temperature=self._temperature,
                timeout=self._timeout_s,  # of each read; `_read_body` applies it to the whole body
                extra_body=self._extra or None,
                **options,
            ) as response:
                body = _read_body(response.iter_bytes(), end, self._timeout_s)
        except Exception as err:  # the client has many error classes
            raise self._to_failure(err) from None
        return read_completion(body, self._key.mask)

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Run calls concurrently and return their results or exceptions. A call must not call `run_all`."""
        if len(calls) < 2:
            return [attempt(call) for call in calls]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="judge")
            pool = self._pool
        return list(pool.map(attempt, calls))

    def _client(self) -> Any:
        with self._lock:
            if self._openai is None:
                from openai import DefaultHttpxClient, OpenAI

                self._key = _read_key(self._key_name)
                key = self._key.value
                self._openai = OpenAI(
                    api_key=key or _NO_KEY,
                    base_url=self._url,
                    max_retries=0,
                    default_headers={"Authorization": f"Bearer {key}"} if key else None,
                    http_client=DefaultHttpxClient(
                        event_hooks={"request": [partial(_strip_headers, key)], "response": [_raise_for_status]}
                    ),
                )
                weakref.finalize(self, self._openai.close)
            return self._openai

    def _to_failure(self, err: Exception) -> ScoringFailed:
        """Return the failure of a client's error, its text masked and shortened."""
        found = next((each for each in (err, err.__cause__) if isinstance(each, ScoringFailed)), None)
        if found is None:
            found = _connection_failure(err)
        text = self._key.mask(str(found))[:MAX_MESSAGE_LENGTH]
        return ScoringFailed(text, found.kind, found.transient, found.failure.retry_after_s)

    def __getstate__(self) -> dict[str, Any]:
        unsaved = ("_lock", "_pool", "_openai", "_key")
        return {name: value for name, value in vars(self).items() if name not in unsaved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _pool=None, _openai=None, _key=ApiKey())


def _read_key(variable: str) -> ApiKey:
    try:
        return ApiKey.read(variable)
    except ValueError as err:
        raise RewardError(f"api_key_env: {err}") from None


def _strip_headers(key: str, request: Any) -> None:
    """Remove the headers that the client adds from environment variables for OpenAI's service (request hook)."""
    for name in [each for each in request.headers if not each.lower().startswith(_KEPT_HEADERS)]:
        del request.headers[name]
    if not key or request.headers.get("Authorization") != f"Bearer {key}":
        request.headers.pop("Authorization", None)


def _raise_for_status(response: Any) -> None:
    """Raise the failure of an error response, of which only the beginning is read (response hook)."""
    if response.status_code < 400:
        return
    reason, end = b"", time.monotonic() + MAX_ERROR_S
    try:
        for chunk in response.iter_bytes():
            reason += chunk
            if len(reason) >= MAX_ERROR_BYTES or time.monotonic() > end:
                break
    except Exception as err:  # an error response whose body cannot be read is still one
        reason = reason or type(err).__name__.encode()
    status = response.status_code
    message = " ".join(reason[:MAX_ERROR_BYTES].decode("utf-8", "replace").split())
    raise ScoringFailed(
        f"HTTP {status} from the judge: {message or 'no reason given'}",
        f"http_{status}",
        transient=is_transient(status),
        retry_after_s=retry_after_s(response.headers.get("retry-after")),
    )


def _read_body(chunks: Any, end: float, timeout_s: float) -> bytes:
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ScoringFailed(f"the server's answer has more than {MAX_BODY_BYTES} bytes", "too_large")
        if time.monotonic() > end:
            raise ScoringFailed(f"the server's answer was not complete after {timeout_s:g} s", "timeout", True)
    return bytes(body)


def _connection_failure(err: Exception) -> ScoringFailed:
    """Return the failure of a connection by the names of its classes: openai 2 uses httpx and openai 3 httpx2."""
    chain = [each for each in (err, err.__cause__) if each is not None]
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    text = f"{type(chain[-1]).__name__}: {str(chain[-1]) or err}"
    if names & {"APITimeoutError", "TimeoutException"}:
        return ScoringFailed(f"the judge did not answer in time ({text})", "timeout", True)
    if names & {"APIConnectionError"}:
        return ScoringFailed(f"the judge cannot be reached ({text})", "connection", True)
    if names & {"TransportError", "DecodingError", "StreamError"}:
        return ScoringFailed(f"the judge's answer broke off ({text})", "truncated", True)
    return ScoringFailed(text)
