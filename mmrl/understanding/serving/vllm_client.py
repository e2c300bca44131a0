"""A client of the HTTP routes of `vllm serve`, as vLLM 0.33.0 has them.

| Route | Served with |
|-|-|
| `GET /health`, `GET /v1/models`, `POST /inference/v1/generate` | always |
| `POST /v1/load_lora_adapter`, `/v1/unload_lora_adapter` | `--enable-lora`, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` |
| `POST /pause`, `/resume`, `/start_weight_update`, `/update_weights`, `/finish_weight_update`, \
`/init_weight_transfer_engine`, `/update_weight_version`, `GET /weight_info`, `/get_world_size` | \
`VLLM_SERVER_DEV_MODE=1` |
| `POST /collective_rpc`, `/reset_prefix_cache`, `/reset_mm_cache`, `/reset_encoder_cache` | `VLLM_SERVER_DEV_MODE=1` |

`--api-key` guards `/v1` and `/inference` alone: the routes of weights are open to everyone who reaches the port.

A client lives in one event loop; make it where it is used. The key is read from an environment variable when a client
is made, and is masked in every message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from mmrl.api_key import ApiKey
from mmrl.config.servers import ServersConfig
from mmrl.errors import ConfigError
from mmrl.http_retries import is_transient, retry_after_s
from mmrl.understanding.serving.server_failure import ServerFailure

MAX_BODY_BYTES = 256 * 2**20
"""The largest reply that is read: a group of 64 answers of 16,000 tokens has about 100 MiB."""
MAX_MESSAGE_LENGTH = 400
"""Characters of a server's own words in a message."""
RESET_TRIES = 20
"""Requests to empty the prefix cache, which fails while blocks are held, 0.1 s apart."""


def read_key(variable: str) -> ApiKey:
    """Return the key in an environment variable; an empty one if no variable is named.

    Raises:
        ConfigError: the variable is not set, or its value is not valid in a header. The message has no part of it.
    """
    try:
        return ApiKey.read(variable)
    except ValueError as err:
        raise ConfigError(f"run.servers.api_key_env: {err}") from None


class VLLMClient:
    """The routes of one server. Every method raises `ServerFailure` where the server does not do what it should."""

    def __init__(self, url: str, settings: ServersConfig) -> None:
        self.url, self._timeouts = url, settings.timeouts
        self._key = read_key(settings.api_key_env)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {self._key.value}"} if self._key.value else {},
            timeout=httpx.Timeout(settings.timeouts.request, connect=settings.timeouts.connect),
            limits=httpx.Limits(max_connections=settings.concurrency + 4),
            trust_env=False,  # a proxy of the environment is not for servers that are named by their address
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def health(self, timeout_s: float | None = None) -> None:
        """Return if the server and its engine live."""
        await self._send("GET", "/health", timeout_s=timeout_s or self._timeouts.connect)

    async def models(self) -> dict[str, str | None]:
        """Return the served models: a base model by its name with None, an adapter with the name of its base model."""
        found = await self._json("GET", "/v1/models", timeout_s=self._timeouts.silence)
        cards = found.get("data")
        if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
            raise self.failure("wrong_reply", "/v1/models returned no list of models: it is no vLLM server")
        return {str(card["id"]): card.get("parent") for card in cards}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post to `/inference/v1/generate` and return the reply."""
        return await self._json("POST", "/inference/v1/generate", body, self._timeouts.request)

    async def complete_chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Generate the answer to a conversation and return the reply; every OpenAI-style server has this route."""
        return await self._json("POST", "/v1/chat/completions", body, self._timeouts.request)

    async def load_lora(self, name: str, path: str) -> None:
        """Load an adapter folder, as the server sees it, under a name that was never used."""
        body = {"lora_name": name, "lora_path": path}
        await self._send("POST", "/v1/load_lora_adapter", body, self._timeouts.update)

    async def unload_lora(self, name: str) -> None:
        """Unload an adapter."""
        await self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name}, self._timeouts.update)

    async def pause(self) -> None:
        """Stop generating: freeze the requests that run, and queue new ones."""
        await self._send("POST", "/pause?mode=keep", timeout_s=self._timeouts.update)

    async def resume(self) -> None:
        """Generate again."""
        await self._send("POST", "/resume", timeout_s=self._timeouts.update)

    async def init_weight_transfer_engine(self, info: Mapping[str, Any]) -> None:
        """Let the workers join the trainer's transfer group; returns when the trainer has joined too."""
        await self._send("POST", "/init_weight_transfer_engine", {"init_info": dict(info)}, self._timeouts.update)

    async def start_weight_update(self) -> None:
        """Begin an update of weights."""
        await self._send("POST", "/start_weight_update", timeout_s=self._timeouts.update)

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        """Receive the tensors that `info` describes."""
        await self._send("POST", "/update_weights", {"update_info": dict(info)}, self._timeouts.update)

    async def finish_weight_update(self, version: str) -> None:
        """End an update of weights and name the version."""
        await self._send("POST", "/finish_weight_update", {"weight_version": version}, self._timeouts.update)

    async def name_version(self, version: str) -> None:
        """Name the version of the weights that the server has; every answer reports it."""
        await self._send("POST", "/update_weight_version", {"new_version": version}, self._timeouts.update)

    async def version(self) -> str:
        """Return the version of the server's weights; `default` after a start."""
        found = await self._json("GET", "/weight_info", timeout_s=self._timeouts.silence)
        return str(found.get("weight_version"))

    async def world_size(self) -> int:
        """Return the number of GPUs that hold the server's model."""
        return int((await self._json("GET", "/get_world_size", timeout_s=self._timeouts.silence))["world_size"])

    async def reload_weights(self, path: str) -> None:
        """Let the workers read all weights from a folder of safetensors again, as the server sees it."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._send("POST", "/collective_rpc", body, self._timeouts.update)

    async def reset_caches(self, running: bool = False) -> None:
        """Empty the caches of what older weights computed: prefixes, encoded pictures and processed pictures.

        `running`: the requests that are paused lose their keys and values too, and are read again when they go on.
        Processed pictures, which do not depend on weights, are kept then: some of the requests wait for them.
        """
        path = "/reset_prefix_cache" + ("?reset_running_requests=true" if running else "")
        for _ in range(RESET_TRIES):
            found = await self._json("POST", path, timeout_s=self._timeouts.update)
            if found.get("success") is True:
                break
            await asyncio.sleep(0.1)
        else:
            raise self.failure("wrong_reply", "its prefix cache cannot be emptied: /reset_prefix_cache did not succeed")
        await self._send("POST", "/reset_encoder_cache", timeout_s=self._timeouts.update)
        if not running:
            await self._send("POST", "/reset_mm_cache", timeout_s=self._timeouts.update)

    def failure(self, kind: str, text: str, transient: bool = False, wait_s: float | None = None) -> ServerFailure:
        """Return a failure of this server, its text without the key and shortened."""
        return ServerFailure(self.url, kind, self._key.mask(text)[:MAX_MESSAGE_LENGTH], transient, wait_s)

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0
    ) -> dict[str, Any]:
        content = await self._send(method, path, body, timeout_s)
        try:
            found = json.loads(content)
        except ValueError:  # a proxy, or a process that ended while it wrote
            raise self.failure("truncated", f"{path} returned {len(content)} bytes that are no JSON", True) from None
        if not isinstance(found, dict):
            raise self.failure("wrong_reply", f"{path} returned a {type(found).__name__}, not an object")
        return found

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 30.0
    ) -> bytes:
        """Send a request and return the body of the reply; the time is that of the whole exchange."""
        started = time.monotonic()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, path, json=None if body is None else dict(body)) as reply,
            ):
                content = bytearray()
                async for chunk in reply.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_BODY_BYTES:
                        raise self.failure("too_large", f"{path} returned more than {MAX_BODY_BYTES} bytes")
        except (TimeoutError, httpx.TimeoutException):
            waited = time.monotonic() - started
            raise self.failure("timeout", f"{path} did not answer in {waited:.1f} s", True) from None
        except httpx.HTTPError as err:
            raise self._broken(path, err) from None
        if reply.status_code >= 400:
            raise self._refused(path, reply, bytes(content))
        return bytes(content)

    def _broken(self, path: str, err: httpx.HTTPError) -> ServerFailure:
        text, began = f"{type(err).__name__}: {err}", "without sending a response" not in str(err)
        if began and isinstance(err, httpx.RemoteProtocolError | httpx.DecodingError):
            return self.failure("truncated", f"the reply of {path} broke off ({text})", True)
        return self.failure("connection", f"{path} cannot be reached ({text})", True)

    def _refused(self, path: str, reply: httpx.Response, content: bytes) -> ServerFailure:
        status, words = reply.status_code, self._key.mask(" ".join(content.decode("utf-8", "replace").split()))
        kind, hint = f"http_{status}", ""
        if status == 404 and "does not exist" in words:  # the name of an adapter
            kind = "lost_weights"
        elif status in (404, 405):
            hint = f"; {_remedy(path)}"
        elif status in (401, 403):
            hint = "; run.servers.api_key_env names the variable with its key, and --api-key-env of mmrl evaluate"
        return self.failure(
            kind,
            f"{path} returned HTTP {status}: {words[:300] or 'no reason given'}{hint}",
            is_transient(status),
            retry_after_s(reply.headers.get("retry-after")),
        )


def _remedy(path: str) -> str:
    """Return how a server is started that has a route."""
    if path.startswith(("/v1/load_lora", "/v1/unload_lora")):
        return "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    if path.startswith("/inference"):
        return (
            "this is no vLLM server of version 0.33 or later: another OpenAI-style server can be compared by "
            "`mmrl evaluate NAME@URL`, and nothing can be learnt from it"
        )
    if path.startswith("/v1/chat"):
        return "this is no OpenAI-style server, or its address has a path beside the host and port"
    return "start it with VLLM_SERVER_DEV_MODE=1"
