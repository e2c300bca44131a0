"""ASGI middleware in front of the app: accepted host names, size limits of requests, and security headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmrl.demo.request_validation import MOST_BYTES

MOST_BODY = 2 * 2**20
"""Bytes of a request that uploads nothing."""
MOST_KEPT = 256 * 2**20
"""Bytes of uploads on disk at once."""
MOST_AT_ONCE = MOST_BYTES + 64 * 2**10
"""Bytes of a request with an upload: one file of the largest size, and its envelope."""
_REMOTE = re.compile(r"/(?:proxy|file)=\s*(?:[a-z][a-z0-9+.-]*:)?//|/proxy=|/deep_link|/mcp", re.IGNORECASE)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data:; "
    "frame-ancestors 'self'; form-action 'self'; base-uri 'self'; object-src 'none'"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@dataclass
class SecurityMiddleware:
    """A middleware that rejects unsafe requests and adds security headers to all responses."""

    app: ASGIApp
    uploads: Path
    host: str  # the address that the server listens on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = MOST_AT_ONCE if _is_upload(scope) else MOST_BODY
        if (error := self._error(scope, most)) is not None:
            status, text = error
            await PlainTextResponse(text, status, HEADERS)(scope, receive, send)
            return
        await self.app(scope, _limited(receive, most), _with_headers(send))

    def _error(self, scope: Scope, most: int) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        name = headers.get("host", "").rpartition("@")[2]
        name = name.partition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]
        if self.host in LOOPBACK and name.lower() not in LOOPBACK:  # DNS rebinding: another name for this address
            return 421, "this server answers to this machine alone"
        if _REMOTE.search(str(scope.get("path", ""))):
            return 403, "nothing is fetched from elsewhere"
        if _is_upload(scope) and _size(self.uploads) > MOST_KEPT:
            return 507, "too many files were uploaded: wait some minutes"
        length = headers.get("content-length", "")
        return (413, f"at most {most} bytes") if length.isdigit() and int(length) > most else None


def _is_upload(scope: Scope) -> bool:
    return str(scope.get("path", "")).rstrip("/").endswith("/upload")


def _limited(receive: Receive, most: int) -> Receive:
    """Return `receive` that disconnects after `most` bytes: a body need not state its length."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= most else {"type": "http.disconnect"}

    return limited


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.append(name, value)
        await send(message)

    return sent


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
