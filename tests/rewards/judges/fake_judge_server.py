"""A fake judge on localhost that answers as configured: rightly, wrongly, late, in part, or not at all.

    with FakeJudge(lambda request: Sure(0.8)) as judge:
        load("judge", model="stub", base_url=judge.base_url).score(batch)

The function returns the behaviour: `Sure(p)` and `Says(text)` are a judge that works, the other classes one that fails.
It needs only the standard library and Pillow.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

Request = Mapping[str, Any]


@dataclass(frozen=True)
class Sure:
    """Log-probabilities of two words; the likelier word as text if none are requested or available."""

    probability: float
    yes: str = "Yes"
    no: str = "No"
    logprobs: bool = True
    other: float = 0.05  # probability of everything else


@dataclass(frozen=True)
class Says:
    """A text, without log-probabilities."""

    text: str
    finish_reason: str = "stop"


@dataclass(frozen=True)
class Refuses:
    """An HTTP status that is no success."""

    status: int
    body: bytes = b'{"error": {"message": "try later"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sends:
    """Any body, as a success."""

    body: bytes
    content_type: str = "application/json"


@dataclass(frozen=True)
class Hangs:
    """Nothing at all; with `after`, nothing after that many bytes of a good answer."""

    after: int | None = None


@dataclass(frozen=True)
class Cuts:
    """A good answer that ends after a share of its bytes; `honest`: and says that this is all of it."""

    share: float = 0.5
    honest: bool = False


@dataclass(frozen=True)
class Drips:
    """A good answer, a byte at a time."""

    pause_s: float = 0.05


@dataclass(frozen=True)
class HangsUp:
    """The connection closes without a word."""


@dataclass(frozen=True)
class Late:
    """Another answer, after a while."""

    seconds: float
    then: Any


def giant(size: int = 50_000_000) -> Sends:
    """A body far longer than any completion."""
    return Sends(b'{"choices": [' + b" " * size + b"]}")


class FakeJudge:
    """The server, a context manager; `base_url` is its address, `requests` are those it received.

    `answer` is one of the classes above, or a function of the request (its JSON) that gives one. It runs in the thread
    of its connection, so several may run at once.
    """

    def __init__(self, answer: Callable[[Request], Any] | Any, delay_s: float = 0.0, api_key: str = "") -> None:
        self._answer = answer if callable(answer) else lambda request: answer
        self._delay_s, self._key = delay_s, api_key
        self.requests: list[Request] = []
        self.headers: list[Mapping[str, str]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def base_url(self) -> str:
        """Return the URL that judges are configured with."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeJudge:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        rejection = self._rejection(handler, body)
        if rejection is not None:
            return _send(handler, rejection.status, rejection.body, rejection.headers)
        request = json.loads(body)
        with self._lock:
            self.requests.append(request)
            self.headers.append(dict(handler.headers))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self._delay_s:
                time.sleep(self._delay_s)
            self._give(handler, request, self._answer(request))
        finally:
            with self._lock:
                self._at_once -= 1

    def _rejection(self, handler: BaseHTTPRequestHandler, body: bytes) -> Refuses | None:
        """Return the rejection of a request that violates the specification, or None."""
        if handler.path != "/v1/chat/completions":
            return Refuses(404, b'{"error": {"message": "no such path"}}')
        header = handler.headers.get("Authorization", "")
        if self._key and header != f"Bearer {self._key}":
            output = json.dumps({"error": {"message": f"Incorrect API key provided: {header}"}})
            return Refuses(401, output.encode())
        try:
            request = json.loads(body)
            whole = isinstance(request["model"], str) and isinstance(request["messages"], list)
        except (ValueError, KeyError, TypeError):
            whole = False
        return None if whole else Refuses(400, b'{"error": {"message": "model and messages are required"}}')

    def _give(self, handler: BaseHTTPRequestHandler, request: Request, answer: Any) -> None:
        if isinstance(answer, Late):
            self._closing.wait(answer.seconds)
            return self._give(handler, request, answer.then)
        if isinstance(answer, Refuses):
            return _send(handler, answer.status, answer.body, answer.headers)
        if isinstance(answer, Sends):
            return _send(handler, 200, answer.body, {"Content-Type": answer.content_type})
        if isinstance(answer, Sure | Says):
            return _send(handler, 200, completion(request, answer))
        handler.close_connection = True
        good = completion(request, Sure(0.9))
        if isinstance(answer, Hangs):
            if answer.after is not None:
                handler.wfile.write(_head(200, len(good), {}) + good[: answer.after])
            self._closing.wait()
        elif isinstance(answer, Cuts):
            part = good[: int(len(good) * answer.share)]
            # Without the header a client reuses the connection for its next request, and finds it closed.
            whole = {"Connection": "close"} if answer.honest else {}
            handler.wfile.write(_head(200, len(part) if answer.honest else len(good), whole) + part)
        elif isinstance(answer, Drips):
            handler.wfile.write(_head(200, len(good), {}))
            for byte in good:
                if self._closing.wait(answer.pause_s):
                    break
                handler.wfile.write(bytes([byte]))
        elif not isinstance(answer, HangsUp):
            raise TypeError(f"the fake judge cannot answer {answer!r}")


def in_turn(*answers: Any) -> Callable[[Request], Any]:
    """Return the answers in turn, and again from the first."""
    lock, order = threading.Lock(), itertools.cycle(answers)

    def answer(request: Request) -> Any:
        with lock:
            found = next(order)
        return found(request) if callable(found) else found

    return answer


def pictures(request: Request) -> list[Image.Image]:
    """The pictures of a request, in order."""
    parts = [
        part for message in request["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]


def text(request: Request) -> str:
    """Return the text of the user's message, with [picture] for each image."""
    content = request["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else "[picture]" for part in content)


def between(request: Request, tag: str) -> list[str]:
    """Return every text between <tag> and </tag> in the user's message."""
    return re.findall(f"<{tag}>\n(.*?)\n</{tag}>", text(request), re.DOTALL)


def completion(request: Request, answer: Sure | Says) -> bytes:
    """A chat completion, as servers send it."""
    logprobs = None
    if isinstance(answer, Says):
        message, finish = answer.text, answer.finish_reason
    else:
        message, finish = (answer.yes if answer.probability >= 0.5 else answer.no), "stop"
        if answer.logprobs and request.get("logprobs"):
            logprobs = {"content": [_token(message, answer)], "refusal": None}
    choice = {"index": 0, "finish_reason": finish, "logprobs": logprobs,
              "message": {"role": "assistant", "content": message, "refusal": None}}  # fmt: skip
    return json.dumps({
        "id": "chatcmpl-stub", "object": "chat.completion", "created": 0, "model": request["model"],
        "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }).encode()  # fmt: skip


def _token(message: str, answer: Sure) -> dict[str, Any]:
    known = 1 - answer.other
    masses = {answer.yes: known * answer.probability, answer.no: known * (1 - answer.probability), "The": answer.other}
    entries = [
        {"token": token, "logprob": math.log(mass) if mass else -9999.0, "bytes": list(token.encode())}
        for token, mass in sorted(masses.items(), key=lambda entry: -entry[1])
    ]
    return {**next(entry for entry in entries if entry["token"] == message), "top_logprobs": entries}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a thread that hangs is left to itself
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that gave up first
            super().handle_error(request, client_address)


def _handler(judge: FakeJudge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # 40 ms an answer otherwise

        def do_POST(self) -> None:
            judge.handle(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    handler.wfile.write(_head(status, len(body), headers or {}) + body)


def _head(status: int, length: int, headers: Mapping[str, str]) -> bytes:
    lines = {"Content-Type": "application/json", "Content-Length": str(length), **headers}
    return "".join([f"HTTP/1.1 {status} -\r\n", *(f"{n}: {v}\r\n" for n, v in lines.items()), "\r\n"]).encode()
