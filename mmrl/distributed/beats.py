"""Signs of life: one process writes its position to the store again and again, and reads those of the others.

    beats = Beats(store, line, known, leaves=lambda: False)
    beats.next_round(seconds)  # once a second
    known.finding(others)      # who ended, is silent or late

One thread makes all calls that use the store, because a call that waits for an answer would make another one wait.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from mmrl.distributed.findings import Beat, Members
from mmrl.distributed.position import position

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Beats:
    """The signs of life of one process, and its knowledge of those of the others."""

    def __init__(self, store: Store, line: socket.socket, known: Members, leaves: Callable[[], bool]) -> None:
        """`line` is a connection to the store that sends nothing; `leaves` returns True once this process leaves."""
        self._store, self._line, self._known, self._leaves = store, line, known, leaves
        self.rounds = 0
        """The rounds so far, each with a sign of life."""
        self.waited = 0.0
        """The seconds that this process has spent in the collective call that it waits in."""
        self._wait = position.wait
        self._sent: tuple[int | None, int | None, str] = (None, None, "")

    def own(self) -> Beat:
        """Return the sign of life of this process."""
        return Beat(
            number=self.rounds,
            phase=position.name,
            iteration=position.iteration,
            saved=position.saved,
            run=None if position.run is None else str(position.run),
            wait=position.wait[0] if position.wait else None,
            waited=self.waited,
            left=self._leaves(),
        )

    def send(self) -> Beat:
        """Write the sign of life to the store, and return it."""
        beat = self.own()
        write_beat(self._store, self._known.rank, beat)
        self._sent = (beat.iteration, beat.saved, beat.phase)
        return beat

    def send_change(self) -> None:
        """Write the sign of life if this process is in another place than the last one said."""
        if self._sent != (position.iteration, position.saved, position.name):
            self.check_line()
            self.send()

    def check_line(self) -> None:
        """Raise ConnectionResetError if the store is gone: a call of it would print a page of C++."""
        with suppress(BlockingIOError):
            if not self._line.recv(1):
                raise ConnectionResetError("the store is gone")

    def next_round(self, seconds: float) -> None:
        """Send and read, `seconds` after the last round."""
        self.waited = self.waited + seconds if position.wait and position.wait == self._wait else 0.0
        self._wait = position.wait
        self.exchange(seconds)
        self.rounds += 1

    def exchange(self, seconds: float) -> None:
        """Send, and take what the others have sent `seconds` after the last time."""
        known, beat = self._known, self.send()
        here = known.members[known.rank]
        others = [other for other in range(len(known.members)) if other != known.rank]
        ended = {other for other in others if known.members[other].has_ended(here)}
        # Read after `ended`: the last beat of a process that ended in order says that it left.
        beats = self._store.multi_get([_key(other) for other in others])
        known.update({known.rank: beat}, seconds, set())
        known.update(
            {other: Beat(**json.loads(each)) for other, each in zip(others, beats, strict=True)}, seconds, ended
        )


def write_beat(store: Store, rank: int, beat: Beat) -> None:
    """Write the sign of life of a process to the store."""
    store.set(_key(rank), json.dumps(asdict(beat)))


def _key(rank: int) -> str:
    return f"beat/{rank}"
