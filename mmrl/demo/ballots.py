"""Two anonymous answers to one prompt: who made which is known to the server alone until somebody has voted."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mmrl.data.sample import Sample
from mmrl.demo.errors import DemoError

Verdict = Literal["left", "right", "tie", "both_bad"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass
class Ballot:
    """One question to a visitor."""

    sample: Sample  # as its data set has it
    seed: int
    names: tuple[str, str]  # of the checkpoints: left, right
    media: tuple[Any, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    voted: bool = False


def pick_pair(columns: list[str], chance: random.Random) -> tuple[str, str]:
    """Two different columns in a random order.

    Raises:
        DemoError: there are fewer than two.
    """
    if len(set(columns)) < 2:
        raise DemoError("A blind vote needs two checkpoints or more: tick another one.")
    first, second = chance.sample(sorted(set(columns)), 2)
    return first, second


def checked_verdict(verdict: Any) -> Verdict:
    """One of the four.

    Raises:
        DemoError: it is something else.
    """
    found = next((each for each in VERDICTS if each == verdict), None)
    if found is None:
        raise DemoError(f"A vote is one of {', '.join(VERDICTS)}.")
    return found


class Rate:
    """At most so many events in so many seconds, by key and over all keys."""

    def __init__(
        self, each: int, together: int, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._each, self._together, self._seconds, self._clock = each, together, seconds, clock
        self._events: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Count one event.

        Raises:
            DemoError: there were too many.
        """
        with self._lock:
            now = self._clock()
            while self._events and self._events[0][0] <= now - self._seconds:
                self._events.popleft()
            own = sum(each == key for _, each in self._events)
            if own >= self._each or len(self._events) >= self._together:
                raise DemoError("Too many votes in a short time: wait a minute.")
            self._events.append((now, key))
