"""The few endpoints of the Hugging Face Hub that an upload needs, on loopback: what is pushed is kept, to be read."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """Repositories by OWNER/NAME, each with its visibility and files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.tokens = {"hf_good"}
        self.full = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    """As the hub answers."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._known():
            return
        if self.path == "/api/whoami-v2":
            return self._say(200, {"name": "ann", "type": "user", "orgs": []})
        name = self.path.removeprefix("/api/models/").partition("/revision")[0].partition("?")[0]
        found = self.server.repositories.get(name)
        if found is None:
            return self._say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        files = [{"rfilename": path} for path in found["files"]]
        self._say(200, {"id": name, "private": found["private"], "siblings": files, "sha": "0" * 40, "tags": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._known():
            return
        if self.path == "/api/repos/create":
            payload = json.loads(body)
            name = f"{payload.get('organization') or 'ann'}/{payload['name']}"
            self.server.repositories[name] = {
                "private": bool(payload.get("private")) or payload.get("visibility") == "private",
                "files": {},
            }
            return self._say(200, {"url": f"{self.server.url}/{name}", "id": name, "name": name})
        if self.path == "/api/validate-yaml":
            return self._say(200, {"errors": [], "warnings": []})
        name, _, verb = self.path.removeprefix("/api/models/").removesuffix("/main").rpartition("/")
        if verb == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._say(200, {"files": files})
        if verb == "commit":
            if self.server.full:
                return self._say(507, {"error": "no room is left for private files"})
            for line in body.decode().splitlines():
                each = json.loads(line)
                if each["key"] == "file":
                    content = base64.b64decode(each["value"]["content"])
                    self.server.repositories[name]["files"][each["value"]["path"]] = content
            url = f"{self.server.url}/{name}/commit/{'1' * 40}"
            return self._say(200, {"success": True, "commitOid": "1" * 40, "commitUrl": url})
        self._say(404, {"error": f"this hub has no {self.path}"})

    def log_message(self, *_: Any) -> None:
        """Quietly."""

    def _known(self) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token in self.server.tokens:
            return True
        self._say(401, {"error": "Invalid username or password."})
        return False

    def _say(self, code: int, payload: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(payload).encode()
        self.send_response(code)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """While open, it answers."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
