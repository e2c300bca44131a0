"""A process of a run of six iterations, with a fault: `faulty_process.py FAULT RANK SILENCE LATENESS`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from mmrl.config.training import TimeoutsConfig
from mmrl.distributed.processes import broadcast, gather, joined, rank, sum_in_place
from mmrl.distributed.watchdog import position
from mmrl.errors import ConfigError, RunStopped


def iterate(fault: str, number: int) -> None:
    """Take six iterations; in the rollout of iteration 3 the process of this number has its fault."""
    position.run = Path("runs/toy")
    for iteration in range(1, 7):
        position.iteration = iteration
        broadcast(iteration)
        with position.phase("rollout"):
            if iteration == 3 and rank() == number:
                time.sleep(2)  # longer than a position takes to be sent and read
                act(fault)
        with position.phase("update"):
            gather(rank())
            sum_in_place([torch.ones(3)])
        position.saved = iteration
        if iteration == 2 and fault == "stop-on-request":
            raise RunStopped("stopped on request")


def act(fault: str) -> None:
    """Have a fault."""
    if fault == "raise":
        raise ValueError("the reward broke")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "hang":
        time.sleep(10**6)
    if fault == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if fault == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10**6)


def main(fault: str, number: int, silence: float, lateness: float) -> None:
    """Join the others, and iterate."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore Ctrl-C
    with joined(TimeoutsConfig(start=12, silence=silence, lateness=lateness)):
        if fault == "config":
            raise ConfigError("optimizer.lr is no number")
        if fault == "kill-early" and rank() == number:
            os.kill(os.getpid(), signal.SIGKILL)
        iterate(fault, number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
