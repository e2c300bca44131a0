"""A group of processes that train together, each forked as if `torchrun` had started it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.training.fork_server import Child, ForkServer


@dataclass(frozen=True)
class Group:
    """The processes of one run, by rank."""

    children: list[Child]

    def wait(self) -> list[int]:
        """Return the exit codes of all processes."""
        return [child.wait() for child in self.children]

    def output_text(self) -> str:
        """Return what all processes printed, rank by rank."""
        return "\n".join(child.output_text() for child in self.children)


def start_group(fork_server: ForkServer, folder: Path, count: int, *words: object, **orders: Any) -> Group:
    """Start `mmrl WORDS` in a folder, in `count` processes that find one another as `torchrun` tells them to."""
    alone = count == 1
    return Group(
        [
            fork_server.start(folder, *words, **orders, **({} if alone else {"environment": environment}))
            for environment in environments(count)
        ]
    )


def environments(count: int) -> list[dict[str, str]]:
    """Return the variables that `torchrun` sets for each of `count` processes."""
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
