"""Identity and state of a process: its host, its number there, and whether it has ended, as Linux shows in /proc."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Member:
    """A process of a run."""

    host: str
    pid: int
    machine: str
    """Equal for processes that see one another's pids; empty if unknown. Containers of one host differ."""
    started: str
    """The time of its start in the machine's ticks, which tells a pid from its next user; empty if unknown."""

    @classmethod
    def here(cls) -> Member:
        """Return this process."""
        machine = ""
        with suppress(OSError):
            machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
        return cls(socket.gethostname(), os.getpid(), machine, _started(os.getpid()))

    def has_ended(self, seen_from: Member) -> bool:
        """Return True if the process is known to have ended; False where that cannot be seen, as on another machine."""
        return self._is_visible(seen_from) and _started(self.pid) != self.started

    def kill(self, seen_from: Member) -> None:
        """End the process by SIGKILL, which ends a frozen one too, if it runs on this machine."""
        if self._is_visible(seen_from) and _started(self.pid) == self.started:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def _is_visible(self, seen_from: Member) -> bool:
        return bool(self.machine and self.started) and self.machine == seen_from.machine


def _started(pid: int) -> str:
    """Return the start time of a process; empty if it has ended or cannot be seen. A zombie has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
