"""The HTTP side of a reward service, as an ASGI application.

    POST /v1/rewards/NAME/score    a batch of answers, its scores (`mmrl.rewards.service.score_messages`)
    GET  /v1/rewards               the cards of all rewards
    GET  /health                   200 while it takes requests
    GET  /metrics                  counts and seconds in Prometheus' text format

Status codes of errors: 400 a message that is none, 401 without the key, 404 no such reward, 408 a body that does not
come in time, 413 a body that is too large, 429 with Retry-After while too many requests wait. Nothing is unpickled and
no file that a client names is opened.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mmrl.api_key import ApiKey
from mmrl.data.media.uris import paths_refused
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rewards.service.score_messages import BadMessage, ScoreRequest, decode_request, encode_output
from mmrl.rewards.service.score_queue import QueueFull, ScoreQueue, ServiceCounts

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of a service."""

    body_bytes: int = 256 * 2**20
    """Bytes of a request."""
    body_s: float = 60.0
    """Seconds in which the body of a request must have come."""
    answers: int = 4096
    """Answers of a request."""
    waiting: int = 64
    """Requests that wait or are scored; further ones get 429."""
    threads: int = 1
    """Requests that are scored at once: one for the models of a device."""


def reward_service(rewards: Sequence[Reward], limits: ServiceLimits, key: ApiKey) -> Starlette:
    """Return the application that scores with these rewards; with a `key`, only for those who send it.

    Raises:
        RewardError: starlette is not installed, two rewards have one name, or one needs the run (`ScoreQueue`).
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as err:
        raise RewardError("a reward service needs starlette and uvicorn: pip install 'mmrl-suite[serve]'") from err
    service = _Service(ScoreQueue(rewards, limits.waiting, limits.threads), limits, key)
    return Starlette(
        routes=[
            Route("/v1/rewards/{name}/score", service.with_key(service.score), methods=["POST"]),
            Route("/v1/rewards", service.with_key(service.cards)),
            Route("/health", service.health),
            Route("/metrics", service.with_key(service.metrics)),
        ],
        lifespan=service.lifespan,
    )


class _Service:
    """The handlers of the routes."""

    def __init__(self, queue: ScoreQueue, limits: ServiceLimits, key: ApiKey) -> None:
        self._queue, self._limits, self._key = queue, limits, key

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        with paths_refused():
            yield
        self._queue.close()

    def with_key(self, handler: Handler) -> Handler:
        """Return a handler that answers 401 to requests without the key, if there is one."""

        async def checked(request: Request) -> Response:
            sent = request.headers.get("authorization", "")
            if self._key.value and not hmac.compare_digest(sent.encode(), f"Bearer {self._key.value}".encode()):
                return _error(401, "send the key of this service as a bearer token")
            return await handler(request)

        return checked

    async def score(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._queue.rewards:
            return _error(404, f"there is no reward {name!r} here; there are {', '.join(self._queue.rewards)}")
        try:
            body = await asyncio.wait_for(self._body(request), self._limits.body_s)
            batch = await asyncio.to_thread(decode_request, body, self._limits.answers)
            output = await self._scored(request, name, batch)
            return _json(await asyncio.to_thread(encode_output, output))
        except TimeoutError:
            return _error(408, f"the body did not come within {self._limits.body_s:g} s")
        except _TooLarge as err:
            return _error(413, str(err))
        except BadMessage as err:
            return _error(400, str(err))
        except QueueFull as err:
            return _error(429, str(err), {"Retry-After": str(err.retry_after_s)})
        except (RewardError, ScoringFailed) as err:
            return _error(500, str(err))

    async def _scored(self, request: Request, name: str, batch: ScoreRequest) -> RewardOutput:
        """Wait for the scores, and leave the request out if its client goes before it is begun."""
        future = asyncio.wrap_future(self._queue.submit(name, batch))
        try:
            while not future.done():
                await asyncio.wait([future], timeout=1.0)
                if not future.done() and await request.is_disconnected():
                    self._queue.abandon(name, batch)
                    raise ScoringFailed("the client has gone")
            return future.result()
        except asyncio.CancelledError:
            raise ScoringFailed("the request was left out, because a client that sent it has gone") from None

    async def _body(self, request: Request) -> bytes:
        most = self._limits.body_bytes
        stated = request.headers.get("content-length", "0")
        if stated.isascii() and stated.isdigit() and int(stated) > most:
            raise _TooLarge(f"the body has {stated} bytes; at most {most} are taken")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise _TooLarge(f"the body has more than {most} bytes")
        return bytes(body)

    async def cards(self, request: Request) -> Response:
        return _json(json.dumps({"rewards": [card(reward) for reward in self._queue.rewards.values()]}).encode())

    async def health(self, request: Request) -> Response:
        return _json(json.dumps({"status": "ok", "waiting": self._queue.load}).encode())

    async def metrics(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(metrics_text(self._queue.counts, self._queue.load))


class _TooLarge(RuntimeError):
    """A body with more bytes than are taken."""


def card(reward: Reward) -> dict[str, Any]:
    """Return the facts about a reward that its clients use; an infinite end of the range is None.

    So is the fingerprint of a reward whose scores must not be cached.
    """
    spec = reward.spec
    try:
        fingerprint: str | None = reward.fingerprint()
    except RewardError:
        fingerprint = None
    return {
        "name": reward.name,
        "summary": spec.summary,
        "range": [end if math.isfinite(end) else None for end in spec.range],
        "needs": list(spec.needs),
        "version": spec.version,
        "scope": str(spec.scope),
        "direction": spec.direction,
        "scheduled": reward.scheduled,
        "batch_size": reward.batch_size,
        "source": spec.source,
        "licence": spec.licence,
        "weights": [asdict(file) for file in spec.weights],
        "fingerprint": fingerprint,
    }


def metrics_text(counts: ServiceCounts, waiting: int) -> str:
    """Return counts in Prometheus' text format."""
    lines = ["# TYPE mmrl_rewards_waiting gauge", f"mmrl_rewards_waiting {waiting}"]
    for name, column in (
        ("requests", counts.requests),
        ("repeated_requests", counts.repeated),
        ("abandoned_requests", counts.abandoned),
        ("scoring_seconds", counts.seconds),
    ):
        lines.append(f"# TYPE mmrl_rewards_{name}_total counter")
        lines += [f'mmrl_rewards_{name}_total{{reward="{reward}"}} {value}' for reward, value in sorted(column.items())]
    lines.append("# TYPE mmrl_rewards_answers_total counter")
    for (reward, status), value in sorted(counts.answers.items()):
        lines.append(f'mmrl_rewards_answers_total{{reward="{reward}",status="{status}"}} {value}')
    return "\n".join(lines) + "\n"


def _json(body: bytes) -> Response:
    from starlette.responses import Response

    return Response(body, media_type="application/json")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": message}, status_code=status, headers=headers)


def run_service(
    rewards: Sequence[Reward], limits: ServiceLimits, host: str = "127.0.0.1", port: int = 8765, api_key_env: str = ""
) -> None:
    """Score over HTTP until SIGINT or SIGTERM; requests that are being scored are finished first.

    Raises:
        RewardError: uvicorn is not installed, the address is not loopback and there is no key, or the rewards cannot
            be served.
        OSError: the address is taken.
    """
    try:
        key = ApiKey.read(api_key_env)
    except ValueError as err:
        raise RewardError(f"api_key_env: {err}") from None
    if not key.value and not is_loopback(host):
        raise RewardError(
            f"{host} can be reached from other machines: name the environment variable of a key that clients must "
            "send, with --api-key-env"
        )
    app = reward_service(rewards, limits, key)
    import uvicorn  # installed with starlette: `reward_service` has said so if it is not

    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        print(f"{', '.join(reward.name for reward in rewards)} at {address}", flush=True)
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=30, h11_max_incomplete_event_size=65536
        )
        uvicorn.Server(config).run(sockets=[bound])


def is_loopback(host: str) -> bool:
    """Return True for an address that this machine alone reaches.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.2")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
