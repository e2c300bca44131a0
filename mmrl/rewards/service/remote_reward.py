"""A reward that another process computes: the client of `mmrl rewards serve`."""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import httpx

from mmrl.api_key import ApiKey
from mmrl.http_retries import is_transient, retry_after_s
from mmrl.rewards.core.cache import digest_of
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, RewardOutput, RewardSpec, Scope, WeightFile
from mmrl.rewards.service.score_messages import BadMessage, ScoreRequest, decode_output, encode_request

MAX_RESPONSE_BYTES = 64 * 2**20
SENDINGS = 3
"""Sendings of one request whose response did not come: the service scores it once, and keeps the scores."""


class RemoteReward(Reward):
    """A reward of a service, scored over HTTP; it has the name, range and direction that it has there.

        rewards: [{name: remote, args: {url: "http://127.0.0.1:8765", reward: clip_score}}]

    A run may have several, of one service or of more. Of two with the same name there, one has another by `called`.

    A failure of the service or of the connection is transient: a suite scores again, and counts it by kind
    (`connection`, `timeout`, `http_429`, ...). A request whose response was lost is sent again under the same number,
    so that no answer is scored twice. One without a response after `SENDINGS` times `timeout_s` fails for good, since
    the service hangs or is too slow. Images are sent as PNG, and files that references name as data URIs.
    """

    name = "remote"
    range = (-math.inf, math.inf)
    source = "the service"
    concurrency: ClassVar[int] = 4

    def __init__(
        self, url: str, reward: str, api_key_env: str = "", timeout_s: float = 120.0, called: str = ""
    ) -> None:
        """
        Args:
            url: of the service, such as http://127.0.0.1:8765.
            reward: its name there.
            api_key_env: the environment variable with the service's key, if it has one.
            timeout_s: the seconds that a response may take, the waiting in the service's queue included. A request is
                sent three times, so that it fails after three times as long.
            called: its name here, before a slash also in those of its further values; empty: as there.

        Raises:
            RewardError: the service cannot be reached, refuses the key, or has no such reward.
        """
        if not url.startswith(("http://", "https://")):
            raise RewardError(f"url is {url!r}; it must be a URL such as http://127.0.0.1:8765")
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise RewardError(f"timeout_s is {timeout_s}; it must be above 0")
        self._url, self._key_name, self._timeout_s = url.rstrip("/"), api_key_env, timeout_s
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        found = self._card(reward)
        self._served = reward
        self.name = called or reward  # type: ignore[misc]  # of this reward
        low, high = found["range"]
        self.range = (-math.inf if low is None else low, math.inf if high is None else high)  # type: ignore[misc]
        self.needs, self.version = tuple(found["needs"]), str(found["version"])  # type: ignore[misc]
        self.scope, self.direction = Scope(found["scope"]), found["direction"]  # type: ignore[misc]
        self.scheduled, self.batch_size = bool(found["scheduled"]), found["batch_size"]  # type: ignore[misc]
        self._weights = tuple(WeightFile(**each) for each in found["weights"])
        self._facts = found

    def score_one(self, item: RewardInput) -> float:
        """Return the score of one answer."""
        scored = self.score_rows([item], RewardContext())[0]
        if isinstance(scored, Exception):
            raise scored
        return scored if isinstance(scored, float) else float(dict(scored)[self.name])

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in one request."""
        request = ScoreRequest(uuid.uuid4().hex, tuple(items), context)
        output = self._output(encode_request(request), len(items))
        return [self._scored(output, row) for row in range(len(items))]

    def weight_files(self) -> tuple[WeightFile, ...]:
        """Return the weight files that the service has loaded for this reward."""
        return self._weights

    def fingerprint(self) -> str:
        """Return the hash that identifies the service's scores: of the reward there, with its arguments and its source.

        Raises:
            RewardError: the service states none, so scores must not be cached.
        """
        stated = self._facts.get("fingerprint")
        if not stated:
            raise RewardError(f"{self.name} cannot be cached: {self._url} does not state what its scores depend on")
        return digest_of(self.name, str(stated)).hex()

    @property
    def spec(self) -> RewardSpec:
        """The reward's card, as the service states it."""
        return RewardSpec(
            name=self.name,
            summary=str(self._facts["summary"]),
            range=self.range,
            needs=self.needs,
            version=self.version,
            scope=self.scope,
            direction=self.direction,
            differentiable=False,
            source=str(self._facts["source"]),
            licence=str(self._facts["licence"]),
            weights=self._weights,
        )

    def _scored(self, output: RewardOutput, row: int) -> Scored:
        """Return what the service found for one answer, as this class's base expects it."""
        status, detail = output.status[self._served][row], str(output.detail[row].get(self._served, ""))
        if status is Status.INVALID:
            return InvalidAnswer(detail)
        if status is not Status.OK:
            failure = output.failures[row].get(self._served) if output.failures else None
            if failure is None:
                return ScoringFailed(detail or f"the service says {status}", str(status))
            return ScoringFailed(detail, failure.kind, failure.transient, failure.retry_after_s)
        values = {
            self._name_here(name): float(column[row])
            for name, column in output.values.items()
            if math.isfinite(column[row])
        }
        return values if len(values) > 1 else values.get(self.name, math.nan)

    def _name_here(self, name: str) -> str:
        """Return the name of values that the service calls `name`."""
        if name == self._served:
            return self.name
        return name if self.name == self._served else f"{self.name}/{name}"

    def _card(self, reward: str) -> dict[str, Any]:
        try:
            listed = json.loads(self._send("GET", "/v1/rewards"))["rewards"]
            cards = {str(each["name"]): each for each in listed}
        except ScoringFailed as err:
            raise RewardError(f"no reward service at {self._url}: {err}; start one with: mmrl rewards serve") from err
        except (ValueError, KeyError, TypeError) as err:
            raise RewardError(f"{self._url} is no reward service: {type(err).__name__}: {err}") from err
        if reward not in cards:
            raise RewardError(f"the service at {self._url} has no reward {reward!r}; it has {', '.join(cards)}")
        return dict(cards[reward])

    def _output(self, body: bytes, size: int) -> RewardOutput:
        path, limit = f"/v1/rewards/{self._served}/score", SENDINGS * self._timeout_s
        end = time.monotonic() + limit
        for sending in range(1, SENDINGS + 1):
            try:
                output = decode_output(self._send("POST", path, body, end), size)
            except BadMessage as err:
                raise ScoringFailed(f"{self._url}: {err}", "bad_response") from err
            except ScoringFailed as err:
                if err.kind in ("truncated", "timeout") and time.monotonic() >= end:
                    raise ScoringFailed(
                        f"{self._url} gave no scores of {self.name} within {limit:g} s, {SENDINGS} times timeout_s: it "
                        "hangs, or needs longer. Restart it, or raise timeout_s among the args of this reward",
                        "timeout",
                    ) from err
                if err.kind not in ("truncated", "timeout") or sending == SENDINGS:
                    raise
                continue
            if self._served not in output.values:
                raise ScoringFailed(f"{self._url} gave no values of {self._served}", "bad_response")
            return output
        raise AssertionError("unreachable")

    def _send(self, method: str, path: str, body: bytes | None = None, end: float = math.inf) -> bytes:
        """Send a request and return the body of its response, which is complete before the monotonic time `end`.

        Raises:
            ScoringFailed: of the kind `connection`, `timeout`, `truncated`, `too_large` or `http_STATUS`.
        """
        client, key = self._open_client()
        try:
            left_s = max(min(self._timeout_s, end - time.monotonic()), 0.001)  # of each read
            with client.stream(method, self._url + path, content=body, timeout=left_s) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MAX_RESPONSE_BYTES:
                        raise ScoringFailed(f"the response has more than {MAX_RESPONSE_BYTES} bytes", "too_large")
                    if time.monotonic() >= end:
                        raise ScoringFailed("the response was not complete in time", "timeout", transient=True)
        except httpx.TimeoutException as err:
            late = f"no response within {self._timeout_s:g} s, its timeout_s"
            raise ScoringFailed(late, "timeout", transient=True) from err
        except httpx.ConnectError as err:
            raise ScoringFailed(f"cannot connect: {err}", "connection", transient=True) from err
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            raise ScoringFailed(f"{type(err).__name__}: {err}", "truncated", transient=True) from err
        if response.status_code != 200:
            text = key.mask(content.decode("utf-8", "replace"))[:300]
            raise ScoringFailed(
                f"HTTP {response.status_code}: {text}",
                f"http_{response.status_code}",
                is_transient(response.status_code),
                retry_after_s(response.headers.get("retry-after")),
            )
        return bytes(content)

    def _open_client(self) -> tuple[httpx.Client, ApiKey]:
        with self._lock:
            try:
                key = ApiKey.read(self._key_name)
            except ValueError as err:
                raise RewardError(f"api_key_env: {err}") from None
            if self._client is None:
                headers = {"Authorization": f"Bearer {key.value}"} if key.value else {}
                self._client = httpx.Client(timeout=self._timeout_s, headers=headers, trust_env=False)
                weakref.finalize(self, self._client.close)
            return self._client, key
