"""A training run in which one process meets a fault in a phase."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmrl.distributed import processes
from mmrl.distributed.position import Position


def fail() -> None:
    """Raise an error that no one expects."""
    raise ValueError("injected")


def run_out_of_memory() -> None:
    """Raise what torch and Python raise for lack of memory."""
    raise MemoryError("injected")


MIDST_S = 1.5
"""The seconds in a phase before its fault: others look where it is every second."""
FAULTS: dict[str, Callable[[], None]] = {
    "raise": fail,
    "memory": run_out_of_memory,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda: time.sleep(10**6),
    "exit": lambda: os._exit(3),
}


def train(kind: str, phase: str, rank: int, iteration: int, *words: str) -> None:
    """Run `mmrl train WORDS`; process `rank` has the fault when it enters a phase of an iteration."""
    original = Position.phase

    @contextmanager
    def faulty(self: Position, name: str) -> Iterator[None]:
        with original(self, name):
            if (name, self.iteration, processes.rank()) == (phase, iteration, rank):
                time.sleep(MIDST_S)
                FAULTS[kind]()
            yield

    Position.phase = faulty  # type: ignore[method-assign]
    sys.argv = ["mmrl", "train", *words]
    from mmrl.cli import main

    main()
