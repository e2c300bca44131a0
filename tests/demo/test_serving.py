"""The app over real HTTP, as an attacker would call it. No image is sampled, so no model is loaded."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from mmrl.demo.app import serve
from mmrl.demo.request_validation import MOST_AT_ONCE, MOST_BODY
from mmrl.errors import ConfigError
from tests.demo.app_process import started

pytest.importorskip("gradio")


@pytest.fixture(scope="module")
def served(run, fork_server, tmp_path_factory):
    with started(fork_server, tmp_path_factory.mktemp("served"), [run]) as app:
        yield app


@pytest.fixture(scope="module")
def client(served):
    with httpx.Client(base_url=served.url, timeout=30) as client:
        yield client


def call(client: httpx.Client, number: int, data: list) -> dict:
    """Return the last message of an endpoint, called by its number as programs can."""
    session = uuid.uuid4().hex[:10]
    body = {"data": data, "fn_index": number, "session_hash": session}
    joined = client.post("gradio_api/queue/join", json=body)
    if joined.status_code != 200:
        return {"refused": joined.text}
    last: dict = {}
    with client.stream("GET", "gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line.removeprefix("data:"))
                if message["msg"] == "process_completed":
                    last = message
                if message["msg"] == "close_stream":
                    break
    return last


def endpoint(client: httpx.Client, outputs_of: str) -> tuple[int, dict]:
    """The number and description of the endpoint whose first trigger is the component with this element id."""
    config = client.get("config").json()
    ids = {c["id"] for c in config["components"] if c["props"].get("elem_id") == outputs_of}
    return next((d["id"], d) for d in config["dependencies"] if d["targets"] and d["targets"][0][0] in ids)


@pytest.mark.integration
def test_server_listens_on_localhost_without_sharing(served):
    listening = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if " 0A " in line}
    assert {address.split(":")[0] for address in listening if int(address.split(":")[1], 16) == served.port} == {
        "0100007F"
    }
    config = httpx.get(f"{served.url}config").json()
    assert not config.get("share_url") and not config.get("show_error") and not config.get("analytics_enabled")
    public = [each for each in config["dependencies"] if each["api_visibility"] == "public"]
    assert {event for each in public for _, event in each["targets"]} <= {"load", "unload"}  # of the page itself


@pytest.mark.integration
def test_server_serves_no_file_outside_its_folder(client, served, run, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (served.folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (served.folder / "folder").symlink_to(tmp_path)
    tried = [
        "/etc/passwd", str(run / "config.yaml"), str(Path.cwd() / "pyproject.toml"), "pyproject.toml",
        str(tmp_path / "secret.txt"), f"{served.folder}/../{tmp_path.name}/secret.txt",
        f"{served.folder}/..%2f..%2fetc%2fpasswd", f"{served.folder}/link.txt", f"{served.folder}/folder/secret.txt",
        "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "/proc/self/environ", str(served.votes),
    ]  # fmt: skip
    for path in tried:
        for door in ("gradio_api/file=", "gradio_api/file/", "file=", "static/", "assets/"):
            answer = client.get(f"{door}{path}")
            assert answer.status_code in (401, 403, 404, 405, 422, 500), (door, path, answer.status_code)
            assert "secret" not in answer.text.replace("secret.txt", "") and "root:" not in answer.text


@pytest.mark.integration
def test_server_fetches_no_remote_url(client):
    requested = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/x.png"
    try:
        for door in ("gradio_api/proxy=", "gradio_api/file="):
            assert client.get(f"{door}{url}", follow_redirects=True).status_code == 403
        config = client.get("config").json()
        file = {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}, "orig_name": "x.png"}
        for each in config["dependencies"]:
            call(client, each["id"], [file] * len(each["inputs"]))
    finally:
        server.shutdown()
        server.server_close()
    assert requested == []


@pytest.mark.integration
def test_server_rejects_other_host_names(client):
    for name in ("evil.example", "127.0.0.1.evil.example", "evil.example:7860"):
        assert client.get("config", headers={"host": name}).status_code == 421
    assert client.get("config", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.integration
def test_large_and_numerous_uploads_are_rejected_unread(client, served):
    def files(count, size):
        return [("files", (f"{number}.png", b"x" * size, "image/png")) for number in range(count)]

    assert client.post("gradio_api/upload", files=files(1, 1000)).status_code == 200
    assert client.post("gradio_api/upload", files=files(20, MOST_AT_ONCE // 19)).status_code == 413
    before = sum(path.stat().st_size for path in served.folder.rglob("*") if path.is_file())

    def endless():
        for _ in range(2 * MOST_AT_ONCE // 2**16):
            yield b"x" * 2**16

    headers = {"content-type": "multipart/form-data; boundary=x"}
    try:
        answer = client.post("gradio_api/upload", content=endless(), headers=headers)
        assert answer.status_code >= 400
    except httpx.TransportError:
        pass  # the connection was closed
    after = sum(path.stat().st_size for path in served.folder.rglob("*") if path.is_file())
    assert after - before <= MOST_AT_ONCE
    assert client.post("gradio_api/queue/join", content=b"x" * (MOST_BODY + 1)).status_code == 413


@pytest.mark.integration
def test_bounds_apply_to_endpoints_called_by_number(client, served):
    number, described = endpoint(client, "mm-go")
    fit = [["base"], "a red circle", None, 0, 1, 1, "", 1]
    assert len(described["inputs"]) == len(fit)
    for place, bad in [(0, ["../../x"]), (1, "x" * 2001), (3, -1), (4, 500), (5, 10_000), (6, "1," * 40), (7, 1e9)]:
        data = [*fit]
        data[place] = bad
        message = call(client, number, data)
        assert message["success"] is False and str(served.folder) not in json.dumps(message), (place, message)


@pytest.mark.integration
def test_votes_without_a_ballot_are_rejected(client, served):
    number, _ = endpoint(client, "mm-better-left")
    for each in [number, *(endpoint(client, f"mm-{verdict}")[0] for verdict in ("tie", "both_bad"))]:
        assert call(client, each, [])["success"] is False
    assert not list(served.votes.parent.glob("votes*"))


@pytest.mark.integration
def test_pages_have_a_content_security_policy(client):
    headers = client.get("").headers
    assert "default-src 'self'" in headers["content-security-policy"] and "frame-ancestors" in str(headers)
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.integration
def test_server_has_no_api_documentation(client):
    for door in ("docs", "redoc", "openapi.json", "gradio_api/mcp/sse", "monitoring"):
        assert client.get(door).status_code in (401, 403, 404), door


def test_a_taken_port_is_named_before_a_model_is_loaded():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at 127.0.0.1, port {port}: .*; --port chooses another"):
            serve(["no-run"], "127.0.0.1", port, votes=None, open_browser=False)
