"""What the server remembers of each visitor. Nobody sees anybody else's."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from mmrl.demo.ballots import Ballot
from mmrl.demo.grid import Grid
from mmrl.demo.jobs import Job

MOST = 200
"""Visitors that are remembered; those who came least lately are forgotten first."""


@dataclass
class Session:
    """One visitor."""

    rater: str = field(default_factory=lambda: f"visitor-{uuid.uuid4().hex[:8]}")
    job: Job[Any] | None = None
    grid: Grid | None = None
    ballot: Ballot | None = None
    exported: str | None = None

    def start(self, job: Job[Any]) -> Job[Any]:
        """Take up a job; an earlier one is stopped."""
        self.stop()
        self.job = job
        return job

    def stop(self) -> bool:
        """Ask the present job to stop; whether there was one."""
        if self.job is None:
            return False
        self.job.stop()
        self.job = None
        return True


class Sessions:
    """By the name that the browser's page goes by."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str | None) -> Session:
        """The session of this name, new if need be."""
        key = (name or "")[:64]
        with self._lock:
            found = self._by_name.pop(key, None) or Session()
            self._by_name[key] = found
            while len(self._by_name) > MOST:
                _, old = self._by_name.popitem(last=False)
                old.stop()
            return found

    def forget(self, name: str | None) -> None:
        """A page was closed."""
        with self._lock:
            if found := self._by_name.pop((name or "")[:64], None):
                found.stop()
