"""What stands before the app: whom it answers, how much it is sent, and what pages may load."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.demo.request_validation import MOST_BYTES

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 2 * 2**20
"""Bytes of a request that uploads nothing."""
MOST_KEPT = 256 * 2**20
"""Bytes of uploads that lie on the disk at once."""
MOST_AT_ONCE = MOST_BYTES + 64 * 2**10
"""Bytes of a request that uploads: one file of the largest size, and what stands around it."""
_ELSEWHERE = re.compile(r"/(?:proxy|file)=\s*(?:[a-z][a-z0-9+.-]*:)?//|/proxy=|/deep_link|/mcp", re.IGNORECASE)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data:; "
    "frame-ancestors 'self'; form-action 'self'; base-uri 'self'; object-src 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


@dataclass
class Guard:
    """ASGI middleware."""

    app: App
    uploads: Path
    host: str  # that the server listens on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or let through with the page's policy added."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (refusal := self._refusal(scope)) is not None:
            await _answer(send, *refusal)
            return
        most = MOST_AT_ONCE if _uploads(scope) else MOST_BODY
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > most:
            await _answer(send, 413, f"at most {most} bytes")
            return
        await self.app(scope, _counted(receive, most), _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        name = _header(scope, b"host").decode("latin-1").rpartition("@")[2]
        name = name.partition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]
        if self.host in LOOPBACK and name.lower() not in LOOPBACK:
            return 421, "this server answers to this machine alone"  # a name of elsewhere that was pointed here
        if _ELSEWHERE.search(str(scope.get("path", ""))):
            return 403, "nothing is fetched from elsewhere"
        if _uploads(scope) and _size(self.uploads) > MOST_KEPT:
            return 507, "too many files were uploaded: wait some minutes"
        return None


def _uploads(scope: Scope) -> bool:
    return str(scope.get("path", "")).rstrip("/").endswith("/upload")


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _counted(receive: Receive, most: int) -> Receive:
    """What is received, ended where it is more than it may be: a body need not state its length."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= most else {"type": "http.disconnect"}

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *HEADERS]
        await send(message)

    return sent


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
