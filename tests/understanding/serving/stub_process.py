"""Stub servers as processes that tests start, kill, freeze and start again."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.training.fork_server import own_fork_server

HTTP = httpx.Client(timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0))
"""Shared, since each client reads all certificates for 20 ms; without connections that a kill would break."""


class StubProcess:
    """A process with a stub server for each model."""

    def __init__(self, folders: dict[str, Path], key: str = "") -> None:
        self._folders, self._key = {name: str(folder) for name, folder in folders.items()}, key
        self._ports = _free_ports(len(folders))
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.start()

    @property
    def url(self) -> str:
        return self.urls[0]

    def url_of(self, name: str) -> str:
        """Return the address of the server of a model."""
        return self.urls[list(self._folders).index(name)]

    def start(self) -> None:
        serve = "mmrl_shapeworld.serving.stub_server:serve"
        self._process = own_fork_server().background(serve, self._folders, self._ports, self._key)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait until every server answers."""
        last = time.monotonic() + timeout_s
        for url in self.urls:
            while True:
                try:
                    if HTTP.get(f"{url}/health", timeout=5.0).status_code == 200:
                        break
                except httpx.HTTPError:
                    assert time.monotonic() < last and self._process.poll() is None, f"the stub at {url} did not start"
                    time.sleep(0.05)

    def inject(self, number: int = 0, **faults: int) -> None:
        """Set the faults of one server: how often each is injected, -1 for always. Without any: none."""
        HTTP.post(f"{self.urls[number]}/_stub/faults", json=faults).raise_for_status()

    def reset(self, number: int = 0) -> None:
        """Remove the faults of one server, and what it has loaded and cached beside its weights."""
        HTTP.post(f"{self.urls[number]}/_stub/reset").raise_for_status()

    def log(self, number: int = 0) -> list[str]:
        """Return the paths of the requests so far."""
        found: list[str] = HTTP.get(f"{self.urls[number]}/_stub/log").json()
        return found

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def stub(**folders: Path) -> Iterator[StubProcess]:
    """Serve tiny models while open."""
    process = StubProcess(folders)
    try:
        process.wait()
        yield process
    finally:
        process.kill()


def _free_ports(count: int) -> list[int]:
    found = [socket.socket() for _ in range(count)]
    for each in found:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports
