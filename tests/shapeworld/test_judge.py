"""The judge on loopback: it answers every request, also those that no client of good will sends."""

from __future__ import annotations

import base64
import http.client
import io
import json
import struct
import zlib
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.judge_server import LEAST, probability, serving
from mmrl_shapeworld.scenes import draw

CAPTION = splits.captions("train")[0]
PICTURE = draw(sample_scene(CAPTION, np.random.default_rng(0)))


def encoded(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def asking(text: object = f"<prompt>{CAPTION}</prompt>", url: object = encoded(PICTURE)) -> dict:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    return {"messages": [{"role": "user", "content": parts}]}


def bomb(width: int, height: int) -> str:
    """A PNG that says it is so large, of a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.fixture
def server():
    with serving() as url:
        yield urlsplit(url)


def post(
    connection: http.client.HTTPConnection, body: bytes, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict]:
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_judge_accepts_right_images_and_rejects_empty_ones():
    assert probability(asking()) == 1 - LEAST
    assert probability(asking(url=encoded(Image.new("RGB", (32, 32))))) < 0.5


def test_malformed_requests_are_answered_on_an_open_connection(server, capfd):
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=20)
    bodies = [
        b"\xff\xfe{",
        b"[" * 200_000,
        b"3",
        b'{"messages": 3}',
        b'{"messages": [{"content": null}]}',
        *(
            json.dumps(body).encode()
            for body in (
                asking(text=7),
                asking(text=["a"]),
                asking(url=7),
                asking(url="data:image/png;base64,????"),
                asking(url="data:image/png;base64,\u00e9"),
                asking(url=bomb(8000, 8000)),
                asking(url=bomb(60_000, 60_000)),
                asking(url=encoded(Image.new("RGB", (32, 32)))[:60]),
            )
        ),
    ]
    for body in bodies:
        status, answer = post(connection, body)
        assert status == 400 and answer["error"]["message"], body[:60]
    status, answer = post(connection, json.dumps(asking()).encode())
    assert status == 200 and answer["choices"][0]["message"]["content"] == "yes"
    connection.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("length", ["abc", "-5", "99999999999999999999", "\u00b2", str(2**24 + 1), "0"])
def test_unread_bodies_close_the_connection(server, capfd, length):
    """The unread bytes would be parsed as the next request."""
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=20)
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Content-Length", length.encode("latin-1"))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 404 and response.getheader("Connection") == "close"
    response.read()
    connection.close()
    assert capfd.readouterr().err == ""


def test_unknown_paths_close_the_connection(server):
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=20)
    connection.request("POST", "/v2", b"POST /v1/chat/completions HTTP/1.1\r\n\r\n")
    response = connection.getresponse()
    assert response.status == 404 and response.getheader("Connection") == "close"
    response.read()
    connection.close()
