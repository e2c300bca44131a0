"""A judge of ShapeWorld's pictures behind an OpenAI-compatible endpoint: a server on loopback that needs no model.

    python -m mmrl_shapeworld.judge_server --port 8199
    mmrl train shapes-judge

It reads the caption between <prompt> and </prompt>, looks at the last picture with the rule checker, and gives "yes"
the checker's partial credit as its probability. It stands in for a point judge whose template has $prompt, without a
GPU; pairs and rankings get the same yes or no, which their judges cannot read. It answers whoever asks, and therefore
listens on loopback alone.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge

PORT = 8199
LEAST = 1e-4
"""The lowest probability of either word: log-probabilities stay finite."""
LONGEST = 16 * 2**20  # bytes of a request


class BadRequest(ValueError):
    """A request without a caption of ShapeWorld or without a picture."""


def probability(request: Mapping[str, Any]) -> float:
    """Return the probability of "yes", in (0, 1), for a chat completion request.

    Raises:
        BadRequest: it holds no caption or no picture.
    """
    texts, pictures = [], []
    try:
        for message in request["messages"]:
            content = message["content"]
            parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [_text(part["text"]) for part in parts if part["type"] == "text"]
            pictures += [_text(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
    except (KeyError, TypeError) as err:
        raise BadRequest(f"this is no chat completion request: {err}") from err
    if not pictures:
        raise BadRequest("there is no picture to judge")
    caption = _captions().get(_between("".join(texts), "<prompt>", "</prompt>"))
    if caption is None:
        raise BadRequest("<prompt> holds no caption of ShapeWorld")
    return min(1 - LEAST, max(LEAST, judge(_picture(pictures[-1]), caption).score))


@contextmanager
def serving(port: int = 0, delay_s: float = 0.0) -> Iterator[str]:
    """Serve while open; gives the base URL. Port 0 takes any free one; each answer takes `delay_s` longer."""
    handler = type("Delayed", (_Handler,), {"delay_s": delay_s})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    delay_s = 0.0
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer with a chat completion of one token and its log-probabilities."""
        header = self.headers.get("Content-Length") or "0"
        length = int(header) if header.isascii() and header.isdigit() and len(header) < 12 else 0
        if self.path != "/v1/chat/completions" or not 0 < length <= LONGEST:
            self.close_connection = True  # the unread body must not be taken for the next request
            self._send(404, {"error": {"message": "POST a chat completion to /v1/chat/completions"}})
            return
        try:
            yes = probability(json.loads(self.rfile.read(length)))
        except Exception as err:  # any request gets an answer
            self._send(400, {"error": {"message": str(err) or type(err).__name__}})
            return
        time.sleep(self.delay_s)
        self._send(200, _completion(yes))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a run makes thousands of requests."""

    def _send(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _completion(yes: float) -> dict[str, Any]:
    chances = sorted([("yes", yes), ("no", 1 - yes)], key=lambda pair: -pair[1])
    top = [{"token": word, "logprob": math.log(p), "bytes": list(word.encode())} for word, p in chances]
    return {
        "id": "shapeworld",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "shapeworld",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": chances[0][0]},
                "logprobs": {"content": [top[0] | {"top_logprobs": top}]},
                "finish_reason": "stop",
            }
        ],
    }


@cache
def _captions() -> dict[str, Caption]:
    return {str(caption): caption for split in splits.SPLITS for caption in splits.captions(split)}


def _between(text: str, opening: str, closing: str) -> str:
    return text.rpartition(opening)[2].partition(closing)[0].strip()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"this is no chat completion request: got a {type(value).__name__}, expected a text")
    return value


def _picture(url: str) -> Image.Image:
    try:
        data = base64.b64decode(url.partition("base64,")[2], validate=True)
        return answer_image(Image.open(io.BytesIO(data)))
    except (ValueError, OSError, Image.DecompressionBombError, InvalidAnswer, ScoringFailed) as err:
        raise BadRequest(f"the picture cannot be read: {err}") from err


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=PORT)
    with serving(parser.parse_args().port) as url:
        print(f"judging ShapeWorld's pictures at {url} (Ctrl-C ends it)")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
