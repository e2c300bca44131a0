"""The app as the command starts it, in a separate process."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.training.fork_server import ForkServer


@dataclass(frozen=True)
class Started:
    """An app that runs."""

    port: int
    votes: Path
    folder: Path  # where uploads go

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def started(fork_server: ForkServer, folder: Path, subjects: Sequence[object]) -> Iterator[Started]:
    """While open, `mmrl demo SUBJECTS` runs on a free port of this machine. Ctrl-C ends it, and leaves nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
    votes = folder / "votes.jsonl"
    child = fork_server.start(folder / "cwd", "demo", *subjects, "--no-open", "--port", port, "--votes", votes)
    child.await_text("Ctrl-C ends it")
    (uploads,) = Path(tempfile.gettempdir()).glob(f"mmrl-demo-{child.pid}-*")
    yield Started(port, votes, uploads)
    child.send(signal.SIGINT)
    child.wait()
    assert not uploads.exists()
